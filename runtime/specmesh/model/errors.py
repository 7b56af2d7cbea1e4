"""Why a model cannot be served."""


class UnsupportedModel(Exception):
    """This model would not be served rightly, so it is not served; the message says why."""
