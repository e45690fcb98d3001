"""How far ahead to draft: what a session measures, what each schedule would cost, which to use."""
