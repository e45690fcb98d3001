"""The version of the distribution. Rooms import it from here: `tandem` itself imports the API."""

__version__ = "0.1.0"
