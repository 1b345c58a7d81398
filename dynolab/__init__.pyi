"""The public names of `dynolab`, which `__init__.py` reads to load each when it is first used."""

from dynolab.audit.audit import audit_pairs as audit_pairs
from dynolab.data.encode import Encoded as Encoded, Encoder as Encoder
from dynolab.data.probes.build import build_probes as build_probes
from dynolab.data.rows import (
    Example as Example,
    ProbeRow as ProbeRow,
    read_rows as read_rows,
    write_rows as write_rows,
)
from dynolab.data.sources.load import DataConfig as DataConfig, load_data as load_data
from dynolab.data.world.world import WorldConfig as WorldConfig, build_world as build_world
from dynolab.errors import ConfigError as ConfigError, DynolabError as DynolabError
from dynolab.forces import (
    ForceMap as ForceMap,
    PolicyFunction as PolicyFunction,
    View as View,
    breakdown as breakdown,
    feature_forces as feature_forces,
    feature_step as feature_step,
    kernel_blocks as kernel_blocks,
    kernel_sizes as kernel_sizes,
    kernel_stability as kernel_stability,
    one_step as one_step,
    response_terms as response_terms,
    second_order as second_order,
    split_step as split_step,
    step_forces as step_forces,
    step_layers as step_layers,
    step_terms as step_terms,
    step_validity as step_validity,
    token_forces as token_forces,
)
from dynolab.forces.map.analysis import recorded_examples as recorded_examples
from dynolab.forces.map.breakdown import pair_totals as pair_totals
from dynolab.integrations.calibrated import CalibratedDose as CalibratedDose
from dynolab.integrations.callback import ProbeCallback as ProbeCallback
from dynolab.integrations.dose import DesignedDose as DesignedDose
from dynolab.integrations.forces import ForceCallback as ForceCallback
from dynolab.integrations.group_dose import DesignedGroupDose as DesignedGroupDose
from dynolab.integrations.logits_sam import LogitsSAM as LogitsSAM
from dynolab.judges import (
    ExactJudge as ExactJudge,
    agreement as agreement,
    contests as contests,
    win_rate as win_rate,
)
from dynolab.likelihood.token_logps import ResponseLogits as ResponseLogits
from dynolab.notebook.forces import TextForces as TextForces, force_map as force_map
from dynolab.notebook.result import Result as Result
from dynolab.objectives import (
    Answers as Answers,
    Objective as Objective,
    build_objective as build_objective,
)
from dynolab.objectives.registry import *  # noqa: F403
from dynolab.probes.paths import learning_paths as learning_paths
from dynolab.probes.score import score_probes as score_probes
from dynolab.results.judges import PolicyAnswer as PolicyAnswer
from dynolab.results.study import ProbeScore as ProbeScore
from dynolab.training.alarm import AlarmConfig as AlarmConfig
from dynolab.training.step_record import RecordCache as RecordCache, StepRecord as StepRecord

__version__: str
__all__: list[str]
