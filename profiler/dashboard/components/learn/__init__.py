"""The chapters of the Learn page, one module each: `draw(words, common)`. Only the chosen one is imported."""

CHAPTERS = ("online", "blocks", "memory", "sram", "backward", "kernel", "faults", "reading", "beliefs", "versions",
            "choose", "corrections")
