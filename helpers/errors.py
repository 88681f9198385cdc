"""Every error that the package raises: one line each, what, where and what to do."""


class DeploymentError(Exception):
    """Base of the package's errors; its text is one line that a user can act on."""


class ParameterError(DeploymentError):
    """A parameter file, an experiment's name or an override is wrong."""


class WorkspaceError(DeploymentError):
    """The outputs folder cannot be used: in use, a file, no space left."""


class InstallationError(DeploymentError):
    """A package or a program is missing, or cannot be loaded."""


class DeviceError(DeploymentError):
    """There is no GPU, or no driver that answers."""


class DataError(DeploymentError):
    """A data set cannot be read: a truncated image, an empty class folder."""


class CheckpointError(DeploymentError):
    """A checkpoint does not fit its network, or tries to run code."""


class ArtifactError(DeploymentError):
    """A stage's input is not there, or changed on disk after its hash was taken."""


class FormatError(DeploymentError):
    """An export or a conversion failed."""


class ServerError(DeploymentError):
    """Triton did not start, stopped, or refused a request."""


class MeasurementError(DeploymentError):
    """A performance point could not be measured."""


class AccuracyError(DeploymentError):
    """A check of the parity checks is red."""


class StageError(DeploymentError):
    """A notebook did not run to its end."""


class FleetError(DeploymentError):
    """The machines of a fleet cannot be reached, or do not fit together."""
