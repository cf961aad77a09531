"""Evidence on a stage: a storyline of screens, and the deck, pictures, slides and tables made of it.

``story.tell`` keeps the screens whose claims hold on the loaded data, ``deck.html`` makes one self-contained file of
them, ``files.export`` everything at once. Nothing here needs a network; only pictures and PDF need a browser.
"""
