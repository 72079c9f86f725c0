"""What can go wrong in a worker, in the domain's words.

    WorkerError
    ├── NotServed          this worker does not serve what was asked for
    ├── NotReady           it does, but not yet or no longer
    ├── NotAllowed         the worker's settings do not allow it
    ├── InvalidInput       the request does not fit the signature
    ├── CannotServe        the version can never be served here, or not at this size
    ├── Unsupported        the protocol has it, but Servax does not
    ├── AlreadyExists      what is to be made known has a name that is taken
    ├── TooLarge           the request exceeds a limit of the worker
    ├── Overloaded         too much waits already; the error says how long to stay away
    ├── OutOfMemory        the device has no room for this call
    ├── ExecutionFailed    the program ran and failed
    ├── DeadlineExpired    the caller's deadline passed before the call began
    ├── Delayed            loading cannot go on now, but may later
    └── StartupError       the worker cannot start as configured

The messages are for people and go to callers as they are: they name the thing, the value and the
remedy. `interceptors` maps the classes to gRPC status codes.
"""


class WorkerError(Exception):
    """Base of everything that the worker raises on purpose."""


class NotServed(WorkerError):
    """No such model, version, alias or signature here; the message says which there are."""


class NotReady(WorkerError):
    """The model is being loaded or the worker is shutting down; asking again later helps."""


class NotAllowed(WorkerError):
    """The operator did not allow what was asked for; the message says with which option."""


class InvalidInput(WorkerError):
    """The inputs do not fit the signature; asking again with the same inputs does not help."""


class CannotServe(WorkerError):
    """The version does not run on this worker, or not at the size that was asked for."""


class Unsupported(WorkerError):
    """What another protocol than the native one has, but Servax does not."""


class AlreadyExists(WorkerError):
    """What a caller makes known to the worker has a name that is taken."""


class TooLarge(WorkerError):
    """A request is larger than the worker takes."""


class Overloaded(WorkerError):
    """Too much waits already: a queue is full, or it outlasts the caller's deadline.

    `retry_after` is in how many seconds what waits will have been worked off.
    """

    def __init__(self, message: str, retry_after: float = 0.0):
        super().__init__(message)
        self.retry_after = retry_after


class OutOfMemory(WorkerError):
    """The device could not allocate what the call needs."""


class ExecutionFailed(WorkerError):
    """The program failed while it ran; the message is the device's."""


class DeadlineExpired(WorkerError):
    """The caller's deadline passed while the request waited; it was not executed."""


class Delayed(WorkerError):
    """A step of loading failed for a reason that may pass: the registry is away, the disk full."""


class StartupError(WorkerError):
    """The worker cannot start as configured: a taken port, a directory that it cannot use."""
