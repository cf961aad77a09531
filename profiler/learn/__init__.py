"""What the Learn page teaches: small models of attention that run on a CPU with NumPy, and the words around them.

No Streamlit and no Plotly here. `words` holds the texts, `online`, `faults` and `backward` compute attention step by
step, `sram` and `sizes` count bytes, `reading` finds lines of our kernels, `beliefs` asks the loaded data.
"""
