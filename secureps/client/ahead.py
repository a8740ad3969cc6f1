"""The worker of a client whose trainer may begin ahead: before the virtual time of a task is over.

A simulation asks for a task when its virtual time is over, and says when that begins (`seconds`).
What is given to the trainer then is what it will be given later, or nobody asks for it.
"""

from __future__ import annotations

from secureps.client.trainer import AheadTrainer
from secureps.client.worker import ClientWorker
from secureps.errors import SecurepsError
from secureps.roles.machine import Task
from secureps.roles.member.tasks import Contribute, Evaluate


class AheadWorker(ClientWorker):
    """Has the trainer begin as soon as a task does; changes nothing else."""

    def seconds(self, task: Task) -> float:
        """How long a task takes in virtual time, which begins now; see `Worker`."""
        held = self.pulled
        try:
            self._begin(task)
        except SecurepsError:
            pass  # said when the task is done, which comes to the same
        finally:
            self.pulled = held  # what is let go of then may be needed until then
        return super().seconds(task)

    def _begin(self, task: Task) -> None:
        trainer = self._site.trainer
        assert isinstance(trainer, AheadTrainer)
        match task:
            case Contribute():
                if self._early is None or self._labels(self._early[0]) != self._labels(task):
                    trainer.begin_fit(*self.ordered(task, self._staying(task)))
            case Evaluate():
                model = self._assemble(task, self._staying(task))
                trainer.begin_evaluate(model, {at.group: at.version for at in task.model})
