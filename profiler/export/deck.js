// The deck: one screen at a time, its steps in order, all screens with all steps on paper.
const deck = JSON.parse(document.getElementById("deck").textContent);
const stage = document.querySelector("main"), bar = document.getElementById("bar");
const panel = { notes: document.getElementById("notes"), help: document.getElementById("help") };
const wish = new URLSearchParams(deck.start || location.search);
const view = { theme: deck.themes.includes(wish.get("theme")) ? wish.get("theme") : deck.themes[0], at: 0, step: 0 };
const drawn = deck.screens.map(() => "");
const boxes = deck.screens.map((screen) => {
  const section = document.createElement("section"), box = document.createElement("div");
  section.id = "screen-" + screen.id;
  section.setAttribute("aria-label", screen.title);
  section.append(box);
  stage.append(section);
  return box;
});

function seen(screen, step) {
  const upTo = (list) => list.map((first) => first <= step);
  const layout = {};
  upTo(screen.order.annotations).forEach((on, i) => { layout[`annotations[${i}].visible`] = on; });
  upTo(screen.order.shapes).forEach((on, i) => { layout[`shapes[${i}].visible`] = on; });
  return [{ visible: upTo(screen.order.traces) }, layout];
}

async function draw(i, step) {
  const screen = deck.screens[i], state = view.theme + step;
  if (drawn[i] === state) return;
  if (!drawn[i].startsWith(view.theme)) {
    const figure = structuredClone(screen.figures[view.theme]);
    await Plotly.newPlot(boxes[i], figure.data, figure.layout, { displayModeBar: false, responsive: false });
  }
  if (screen.order.traces.length) await Plotly.update(boxes[i], ...seen(screen, step));
  else await Plotly.relayout(boxes[i], seen(screen, step)[1]);
  drawn[i] = state;
}

async function show(at, step) {
  view.at = Math.max(0, Math.min(at, deck.screens.length - 1));
  const screen = deck.screens[view.at];
  view.step = Math.max(0, Math.min(step, screen.order.count));
  document.body.className = view.theme;
  boxes.forEach((box, i) => box.parentNode.classList.toggle("now", i === view.at));
  bar.textContent = `${view.at + 1} / ${deck.screens.length}` + (screen.order.count ? ` · step ${view.step} of ${screen.order.count}` : "") + " · ? for keys";
  panel.notes.replaceChildren(...screen.notes.map((text) => Object.assign(document.createElement("p"), { textContent: text })));
  await draw(view.at, view.step);
  document.body.dataset.at = `${screen.id} ${view.step}`;
  if (!deck.start) try { history.replaceState(null, "", `#${screen.id}`); } catch (error) { /* a sandboxed frame has no address */ }
}

const forward = () => view.step < deck.screens[view.at].order.count ? show(view.at, view.step + 1)
  : view.at + 1 < deck.screens.length ? show(view.at + 1, 0) : null;
const back = () => view.step > 0 ? show(view.at, view.step - 1)
  : view.at > 0 ? show(view.at - 1, deck.screens[view.at - 1].order.count) : null;
const toggle = (name) => { for (const key in panel) panel[key].classList.toggle("on", key === name && !panel[key].classList.contains("on")); };
const full = () => document.fullscreenElement ? document.exitFullscreen() : document.documentElement.requestFullscreen?.().catch(() => {});
const other = () => { view.theme = deck.themes[(deck.themes.indexOf(view.theme) + 1) % deck.themes.length]; return show(view.at, view.step); };
const keys = {
  ArrowRight: forward, ArrowDown: forward, PageDown: forward, " ": forward, Enter: forward,
  ArrowLeft: back, ArrowUp: back, PageUp: back, Backspace: back,
  Home: () => show(0, 0), End: () => show(deck.screens.length - 1, Infinity),
  n: () => toggle("notes"), "?": () => toggle("help"), f: full, t: other,
};

let busy = Promise.resolve();
addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  const act = keys[event.key.length === 1 ? event.key.toLowerCase() : event.key];
  if (!act) return;
  event.preventDefault();
  if (act === full) full(); else busy = busy.then(act);
});
stage.addEventListener("click", () => { focus(); busy = busy.then(forward); });
bar.addEventListener("click", () => toggle("help"));

function fit() {
  const scale = Math.min(innerWidth / 1920, innerHeight / 1080);
  stage.style.transform = `scale(${scale}) translate(-50%, -50%)`;
}
addEventListener("resize", fit);

// What lies on paper: every screen with all its steps, in the light theme.
async function lay() {
  const before = { ...view };
  view.theme = deck.themes.includes("light") ? "light" : view.theme;
  document.body.className = view.theme;
  for (let i = 0; i < deck.screens.length; i++) await draw(i, deck.screens[i].order.count);
  return before;
}
let before = null;
addEventListener("beforeprint", () => { before = { ...view }; lay(); });
addEventListener("afterprint", () => { if (before) { view.theme = before.theme; show(before.at, before.step); before = null; } });

function type() {
  const pen = document.createElement("canvas").getContext("2d");
  const width = (font) => { pen.font = `40px ${font}`; return pen.measureText("FlashAttention 0123456789").width; };
  const has = width("Inter, monospace") !== width("monospace") || width("Inter, serif") !== width("serif");
  document.getElementById("type").textContent = has ? "Type: Inter, as designed."
    : "Type: Inter is not installed here, so the system's sans-serif is used; widths were reserved for that.";
}

(async () => {
  fit();
  type();
  const id = wish.get("screen") || decodeURIComponent(location.hash.slice(1));
  const first = Math.max(0, deck.screens.findIndex((screen) => screen.id === id));
  if (wish.has("paper")) { await lay(); document.body.dataset.at = "paper"; return; }
  await show(first, Number(wish.get("step")) || 0);
  focus();
  for (let i = 0; i < deck.screens.length; i++) {  // the others while nobody waits, so that paper finds them ready
    await new Promise((done) => setTimeout(done, 30));
    busy = busy.then(() => drawn[i] ? null : draw(i, 0));
  }
})();
