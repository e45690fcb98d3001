"""The commands that the laboratory adds to `tandem`, one module each; `bench` is in `lab.bench`."""
