"""What FSD prints, typed in from its text; times in milliseconds, rates in percent."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class HardwareTimes:
    """A column of Table 5, in ms: γ·T_p at γ = 4, T_q, and T_c one way."""

    drafting_ms: float
    verify_ms: float
    link_ms: float


# (provider, models) -> draft's prices in and out, target's, and dollars: AR, SD, edge-cloud SD.
PRICES = {
    ("Together AI", "Qwen1.5-0.5B/Qwen1.5-72B"): ((0.1, 0.1), (0.9, 0.9), 540.0, 360.0, 270.0),
    ("OpenRouter", "llama-3.1-8b/llama-3.1-405b"): ((0.02, 0.05), (0.9, 0.9), 540.0, 312.0, 270.0),
    ("Groq", "llama3-8b-8192/llama3-70b-8192"): ((0.05, 0.08), (0.59, 0.79), 454.0, 286.0, 217.0),
    ("OpenRouter", "Qwen-2-VL-7B/Qwen-2-VL-72B"): ((0.2, 0.2), (0.7, 0.7), 420.0, 390.0, 210.0),
}
TABLE_5 = {
    ("Vicuna-68m/Vicuna-7B", "Jetson"): HardwareTimes(334, 497, 95),
    ("Vicuna-68m/Vicuna-7B", "RTX"): HardwareTimes(102, 442, 42),
    ("Vicuna-160m/Vicuna-13B", "Jetson"): HardwareTimes(1596, 616, 91),
    ("Vicuna-160m/Vicuna-13B", "RTX"): HardwareTimes(555, 618, 46),
    ("Vicuna-68m/Llama2-7B", "Jetson"): HardwareTimes(301, 522, 96),
    ("Vicuna-68m/Llama2-7B", "RTX"): HardwareTimes(99, 467, 47),
}
ROBOT = HardwareTimes(288, 620, 120)
"""Table 8a, as a column of Table 5."""
_Line = tuple[float, ...]
# Task -> AR → SD, SD → FSD, τ and r in %; each over the columns of Table 5.
TABLE_6: dict[str, tuple[_Line, _Line, _Line, _Line]] = {
    "MT-bench": (
        (0.70, 1.30, 0.42, 0.97, 1.34, 2.01),
        (1.04, 1.04, 1.05, 1.09, 1.07, 1.02),
        (2.30, 2.01, 2.28, 2.98, 4.12, 3.48),
        (60.92, 20.07, 62.49, 16.40, 36.73, 13.38),
    ),
    "HumanEval": (
        (0.79, 1.42, 0.47, 0.85, 1.53, 2.09),
        (1.04, 1.03, 1.06, 1.15, 1.22, 1.07),
        (2.04, 2.66, 2.14, 2.04, 4.16, 3.83),
        (64.73, 15.79, 57.64, 25.16, 17.6, 1.75),
    ),
    "GSM8K": (
        (0.63, 1.11, 0.40, 0.77, 1.15, 1.69),
        (1.04, 1.08, 1.06, 1.13, 1.07, 1.06),
        (2.08, 1.96, 2.23, 2.29, 3.48, 3.29),
        (61.21, 12.40, 58.04, 18.37, 41.87, 9.55),
    ),
    "Alpaca": (
        (0.63, 1.06, 0.42, 0.74, 1.42, 1.99),
        (1.04, 1.07, 1.05, 1.12, 1.10, 1.18),
        (2.09, 1.96, 2.32, 2.36, 4.29, 3.62),
        (64.60, 19.29, 60.94, 25.45, 36.60, 4.28),
    ),
    "CNN/DM": (
        (0.72, 1.20, 0.38, 0.73, 1.41, 1.91),
        (1.03, 1.07, 1.03, 1.07, 1.07, 1.04),
        (2.32, 1.95, 2.08, 2.10, 4.32, 3.43),
        (70.70, 29.40, 69.92, 38.09, 47.13, 13.97),
    ),
    "NQ": (
        (0.65, 1.10, 0.46, 0.82, 1.26, 1.93),
        (1.02, 1.06, 1.04, 1.12, 1.05, 1.01),
        (2.08, 2.05, 2.44, 2.62, 3.83, 3.62),
        (71.50, 22.59, 63.25, 30.25, 57.11, 14.88),
    ),
}
# AR → SD, SD → FSD, τ and r of the averages, by column of Table 5.
TABLE_6_AVERAGES = {
    ("Vicuna-68m/Vicuna-7B", "Jetson"): (0.69, 1.04, 2.15, 65.61),
    ("Vicuna-68m/Vicuna-7B", "RTX"): (1.20, 1.06, 2.10, 19.59),
    ("Vicuna-160m/Vicuna-13B", "Jetson"): (0.42, 1.05, 2.25, 62.05),
    ("Vicuna-160m/Vicuna-13B", "RTX"): (0.94, 1.10, 2.40, 27.95),
    ("Vicuna-68m/Llama2-7B", "Jetson"): (1.35, 1.11, 4.03, 39.94),
    ("Vicuna-68m/Llama2-7B", "RTX"): (1.94, 1.06, 3.54, 9.63),
}
