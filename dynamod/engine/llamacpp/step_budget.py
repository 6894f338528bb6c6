"""How much of a prompt a step may compute, from what earlier steps took."""


class StepBudget:
    """Keeps steps near `seconds` while answers run beside the prompt, and a few times that when none do."""

    ALONE = 4.0
    """Longer steps are cheaper, but a cancel waits for the end of one."""

    def __init__(self, seconds: float, least: int, most: int) -> None:
        self._seconds, self._least, self._most = seconds, least, most
        self.rate = 0.0  # prompt tokens per second, 0 while not known

    def chunk(self, decoding: bool) -> int:
        """Prompt tokens of the next step."""
        if not self.rate:
            return min(self._most, 4 * self._least)
        wanted = int(self.rate * self._seconds * (1 if decoding else self.ALONE))
        return max(self._least, min(self._most, wanted))

    def took(self, tokens: int, seconds: float) -> None:
        """A step has computed so many tokens of prompts. Small ones are not representative."""
        if tokens >= self._least and seconds > 0:
            rate = tokens / seconds
            self.rate = rate if not self.rate else (self.rate + rate) / 2
