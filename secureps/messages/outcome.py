"""What becomes of a submission, one word each: as it is sent, journalled and shown.

The words for what else may end without what it was for, and the records that say so:

    submission   dropped (an `Outcome`); withdrawn: refused on its way (`Withdraw`)
    cohort       reopened: nothing was opened, it closes anew (`CohortReopened`); burnt: charged,
                 and never opened (`CohortBurnt`); spoilt: burnt for what a member of it sent
    opening      refused: by one holder (`OpenRefused`); failed: with these answers, and others
                 may do (`OpeningFailed`)
    round        given up: nothing was opened (`RoundGivenUp`)
    member       declined: takes no part in a round (`MemberDeclined`); passed over: nobody waits
                 for it (`MemberPassed`); retired: leaves for good (`Retire`); isolated: left
                 out, it spoils cohorts (`ClientIsolated`)
    evaluation   skipped (`EvaluationSkipped`)
    row-block    resigned: it stays at its version (`GroupResigned`)
"""

from __future__ import annotations

from enum import StrEnum


class Outcome(StrEnum):
    """What became of a submission whose receipt was accepted; a string everywhere.

    `INCLUDED`: part of a version; `DURABLE`: of one that a checkpoint has; `DROPPED`: part of
    none, ever; `LOST`: nobody has its bytes any more.
    """

    INCLUDED = "included"
    DURABLE = "durable"
    DROPPED = "dropped"
    LOST = "lost"
