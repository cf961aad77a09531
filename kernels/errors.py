"""How the kernels refuse a call: by the argument's name, what was expected, what came; before any launch."""


class UnsupportedCall(ValueError):
    """A call that no implementation here can carry out as asked.

    argument: the parameter's name. expected, got: both sides in words. remedy: what would work, where something would.
    """

    def __init__(self, argument: str, expected: str, got: str, remedy: str = ""):
        self.argument = argument
        self.expected = expected
        self.got = got
        self.remedy = remedy
        super().__init__(f"{argument}: expected {expected}, got {got}." + (f" {remedy}" if remedy else ""))
