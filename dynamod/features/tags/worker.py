"""The labels of a worker."""

from dynamod.worker.parts import WorkerPart

from .messages import TagSection


class LabelledWorker(WorkerPart):
    """Publishes the labels that the settings give the worker."""

    def section(self) -> TagSection | None:
        """None for a worker without labels."""
        labels = getattr(self.context.settings, "tags", ())
        return TagSection(labels) if labels else None
