"""Early exits for any target model; the demo pair; a draft distilled from a real model."""
