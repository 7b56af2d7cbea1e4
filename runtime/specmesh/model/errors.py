"""Why a model cannot be served, or no longer."""


class UnsupportedModel(Exception):
    """This model would not be served rightly, so it is not served; the message says why."""


class RanksLost(Exception):
    """The processes that share the model are not at the same point any more: nothing can be computed."""
