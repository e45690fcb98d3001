"""Draft and target model: acceptance, speed, and overhead of every preset."""
