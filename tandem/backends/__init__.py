"""Language models behind one interface (`interface`), one module or package each."""
