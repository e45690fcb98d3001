"""The services, one package each; they never import each other."""
