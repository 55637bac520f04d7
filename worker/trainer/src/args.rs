//! The command line of `train` and `eval`: one place for each flag's text, default and check.
//!
//! Raw arguments become checked settings here; nothing later reads them or the environment.

use std::path::PathBuf;
use std::sync::LazyLock;

use clap::{Args, builder::PossibleValue, builder::RangedU64ValueParser};
use proto_common::codec::{Codec, Compression};
use proto_common::mode::Mode;

use crate::data::{Format, Shape, Source};
use crate::error::TrainError;
use crate::layers::Layers;
use crate::overlap::Overlap;
use proto_common::optimizer::{KINDS, Kind, Optimizer, Rule, Sgd};

/// Most rows of one worker in one step.
pub const MAX_BATCH: u64 = 65_536;
/// Most epochs.
pub const MAX_EPOCHS: u64 = 1_000_000;
/// Most workers the reference plays.
pub const MAX_REFERENCE_WORKERS: u64 = 4_096;

/// Which file to read and how.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Data")]
pub struct DataArgs {
    /// File of labelled rows (for IDX: of images)
    #[arg(long, value_name = "FILE", default_value = "examples/digits/digits.csv")]
    pub data: PathBuf,
    /// IDX only: the file of labels that belongs to --data
    #[arg(long, value_name = "FILE")]
    pub labels: Option<PathBuf>,
    /// How the file is written
    #[arg(long, value_enum, default_value_t = Format::Auto)]
    pub format: Format,
    /// CSV only: line 1 names the columns
    #[arg(long)]
    pub csv_header: bool,
    /// CSV only: number of the class column, counted from 1 [default: the last]
    #[arg(long, value_name = "N")]
    pub label_column: Option<usize>,
    /// LibSVM only: the first index, 0 or 1 [default: 0 if index 0 occurs anywhere in the file, else 1]
    #[arg(long, value_name = "0|1", value_parser = clap::value_parser!(u32).range(0..=1))]
    pub libsvm_base: Option<u32>,
}

impl DataArgs {
    fn source(&self, scale: f32) -> Source {
        Source {
            file: self.data.clone(),
            labels: self.labels.clone(),
            format: self.format,
            csv_header: self.csv_header,
            label_column: self.label_column,
            libsvm_base: self.libsvm_base,
            scale,
        }
    }
}

/// Of sgd, unless said otherwise.
const MOMENTUM: f32 = 0.9;

/// An update rule of the trainer's tensors, with its usual constants: one of the registry's, or sgd with Nesterov momentum.
/// FTRL is not among them: it forgets the initial weights, without which layers of one width do not come apart.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RuleName {
    /// As it is written.
    pub name: &'static str,
    about: &'static str,
    rule: Rule,
}

static RULES: LazyLock<Vec<RuleName>> = LazyLock::new(|| {
    let nesterov = Sgd { momentum: MOMENTUM, nesterov: true }.into();
    let trains = |kind: &&Kind| kind.steps && !kind.is_internal && kind.name != "ftrl";
    let name = |kind: &Kind| RuleName {
        name: kind.name.replace('_', "-").leak(),
        about: kind.about,
        rule: kind.usual(),
    };
    let mut rules: Vec<RuleName> = KINDS.iter().filter(trains).map(name).collect();
    rules.push(RuleName { name: "nesterov", about: "Sgd that looks ahead by --momentum", rule: nesterov });
    rules
});

impl clap::ValueEnum for RuleName {
    fn value_variants<'a>() -> &'a [Self] {
        &RULES
    }

    fn to_possible_value(&self) -> Option<PossibleValue> {
        Some(PossibleValue::new(self.name).help(self.about))
    }
}

/// Trains a multilayer perceptron (ReLU, softmax cross-entropy), in synchronous rounds unless --mode says otherwise.
///
/// Each worker computes the gradient of its own rows; the servers average the gradients in rank order and
/// update the weights. In synchronous rounds the same flags give the same weights to the last bit, over every transport and on any
/// number of servers; `--reference` computes them in one process without a cluster, to compare. (On CPUs of
/// another kind the matrix products, and so the weights, may differ in their last bits.)
///
/// Rank 0's last line on standard output is
/// `test_accuracy=0.9833 weights_sha256=… transport=shm`, where the hash covers the little-endian bytes
/// of all tensors in order. With `--codec` it goes on: `codec=onebit plain_bytes=… sent_bytes=… saved=96.9%`.
#[derive(Debug, Clone, Args)]
pub struct TrainArgs {
    /// Where rows come from.
    #[command(flatten)]
    pub data: DataArgs,
    /// Divide every feature by this (digits: 16, MNIST: 255)
    #[arg(long, value_name = "X", default_value_t = 16.0, help_heading = "Data")]
    pub scale: f32,
    /// Hold out rows 0, N, 2N, … as the test set
    #[arg(long, value_name = "N", default_value_t = 5, help_heading = "Data",
          value_parser = clap::value_parser!(u32).range(2..))]
    pub test_every: u32,
    /// Test on this file instead of held-out rows (same format); then all rows of --data are trained on
    #[arg(long, value_name = "FILE", help_heading = "Data")]
    pub test_data: Option<PathBuf>,
    /// IDX only: the file of labels that belongs to --test-data
    #[arg(long, value_name = "FILE", requires = "test_data", help_heading = "Data")]
    pub test_labels: Option<PathBuf>,

    /// Layer widths: features first, classes last
    #[arg(long, value_name = "N,N,…", default_value = "64,256,256,10", help_heading = "Training")]
    pub layers: Layers,
    /// Epochs in total, those of a resumed model included
    #[arg(long, value_name = "N", default_value_t = 40, help_heading = "Training",
          value_parser = clap::value_parser!(u32).range(1..=MAX_EPOCHS as i64))]
    pub epochs: u32,
    /// Rows of one worker in one step; a step takes workers × N rows
    #[arg(long, value_name = "N", default_value_t = 16, help_heading = "Training",
          value_parser = RangedU64ValueParser::<usize>::new().range(1..=MAX_BATCH))]
    pub batch: usize,
    /// How servers update the weights; adam and its like want a smaller --lr, such as 0.001
    #[arg(long, value_enum, default_value = "sgd", help_heading = "Training")]
    pub optimizer: RuleName,
    /// Learning rate
    #[arg(long, value_name = "X", default_value_t = 0.05, help_heading = "Training")]
    pub lr: f32,
    /// Momentum of sgd and nesterov, 0 for none [default: 0.9; with another --mode than sync 0, because gradients of older
    /// weights have an effect like it, and too much of both does not learn]
    #[arg(long, value_name = "X", help_heading = "Training")]
    pub momentum: Option<f32>,
    /// L2 weight decay, 0 for none; of adam-w and lamb, by itself
    #[arg(long, value_name = "X", default_value_t = 0.0003, help_heading = "Training")]
    pub weight_decay: f32,
    /// Encode gradients: plain, f16, bf16, onebit, twobit:THRESHOLD, topk:SHARE, randomk:SHARE or dither:BITS
    ///
    /// What an encoding leaves out is added to the next gradient (error feedback). Weights travel as they are. The last
    /// line then also says what this rank's gradients were in bytes, and what was sent for them.
    #[arg(long, value_name = "NAME[:N]", default_value_t = Codec::Plain, help_heading = "Training")]
    pub codec: Codec,
    /// Drop the error of each encoding instead of adding it to the next gradient (no error feedback)
    #[arg(long, help_heading = "Training")]
    pub no_error_feedback: bool,
    /// Momentum at the workers, before gradients are encoded; use it with --momentum 0
    #[arg(long, value_name = "X", default_value_t = 0.0, help_heading = "Training")]
    pub codec_momentum: f32,
    /// How gradients become versions: sync, async, or bounded:N with workers at most N steps apart [default: cluster.mode]
    ///
    /// In async and bounded mode each gradient updates the weights by itself, in the order in which they come, so that two
    /// runs differ, and there are as many updates as workers in each step.
    #[arg(long, value_name = "MODE", help_heading = "Training")]
    pub mode: Option<Mode>,
    /// Steps do not wait for so many of the workers: the last gradients of each step are dropped
    /// [default: cluster.backup_workers]
    #[arg(long, value_name = "N", help_heading = "Training")]
    pub backup_workers: Option<u32>,
    /// Seed of the initial weights and of the row order
    #[arg(long, value_name = "N", default_value_t = 1, help_heading = "Training")]
    pub seed: u64,
    /// Hide the exchange behind computing, or not, to see what that gains; the weights are the same
    #[arg(long, value_enum, value_name = "WHEN", default_value_t = Overlap::On, help_heading = "Training")]
    pub overlap: Overlap,

    /// Write the model here when training ends (safetensors; the file is replaced whole or not at all)
    #[arg(long, value_name = "FILE", help_heading = "Results")]
    pub save: Option<PathBuf>,
    /// Continue from a model written by --save; every worker reads the file
    ///
    /// Weights, seed and finished epochs come from the file, so row orders continue where they stopped.
    /// What a rule keeps (momentum and the like) lives on the servers, what a codec has not sent yet at the workers, and
    /// neither is in the file: both restart at zero, so a resumed run does not end with the same bits as one without a break
    /// unless it is sgd, --momentum is 0 and there is no --codec.
    #[arg(long, value_name = "FILE", help_heading = "Results")]
    pub resume: Option<PathBuf>,
    /// Write the loss curve here as SVG
    #[arg(long, value_name = "FILE", help_heading = "Results")]
    pub plot: Option<PathBuf>,

    /// Compute everything in this process, without a cluster
    #[arg(long, help_heading = "Reference")]
    pub reference: bool,
    /// How many workers the reference plays (in a cluster, the scheduler knows)
    #[arg(long, value_name = "N", default_value_t = 2, requires = "reference", help_heading = "Reference",
          value_parser = clap::value_parser!(u32).range(1..=MAX_REFERENCE_WORKERS as i64))]
    pub workers: u32,
    /// For tests: delay each gradient by a seeded random time of up to this many microseconds
    #[arg(long, value_name = "N", default_value_t = 0, hide = true,
          value_parser = clap::value_parser!(u64).range(..=1_000_000))]
    pub jitter_us: u64,
    /// For tests: fill every buffer that an operation has returned with a pattern, and fail if somebody writes into it
    #[arg(long, hide = true, conflicts_with = "reference")]
    pub poison: bool,
}

impl TrainArgs {
    /// Checks what clap cannot.
    pub fn check(&self) -> Result<(), TrainError> {
        positive("--scale", self.scale)?;
        positive("--lr", self.lr)?;
        if !(0.0..1.0).contains(&self.momentum()) {
            let cause = format!("{} is not from 0 to below 1", self.momentum());
            return Err(TrainError::setting("--momentum", cause, "give a number such as 0.9"));
        }
        if !(self.weight_decay.is_finite() && self.weight_decay >= 0.0) {
            let cause = format!("{} is not 0 or above", self.weight_decay);
            return Err(TrainError::setting("--weight-decay", cause, "give a number such as 0.0001"));
        }
        self.check_combinations()?;
        if self.reference && self.optimizer.name != "sgd" {
            let cause = "the reference computes sgd only";
            return Err(TrainError::setting("--optimizer", cause, "leave it out, or train in a cluster"));
        }
        self.compression().validate().map_err(|error| {
            TrainError::setting("--codec", error.to_string(), "--help lists codecs and their numbers")
        })?;
        Ok(())
    }

    /// Flags that would do nothing are a mistake.
    fn check_combinations(&self) -> Result<(), TrainError> {
        let wrong = |flag, cause: &str, fix| Err(TrainError::setting(flag, cause.to_owned(), fix));
        if self.momentum.is_some() && !matches!(self.optimizer.rule, Rule::Sgd(_)) {
            let cause = "--optimizer is neither sgd nor nesterov, and only those have it";
            return wrong("--momentum", cause, "leave it out");
        }
        if self.codec.is_plain() && self.codec_momentum != 0.0 {
            let cause = "gradients are not encoded";
            return wrong(
                "--codec-momentum",
                cause,
                "choose a --codec, or use --momentum, which servers apply",
            );
        }
        let sync =
            self.mode.is_none_or(Mode::has_rounds) && self.backup_workers.is_none_or(|backup| backup == 0);
        if self.reference && !sync {
            let cause = "the reference computes rounds of all workers only";
            return wrong("--mode", cause, "leave it and --backup-workers out, or train in a cluster");
        }
        if self.codec.is_plain() && self.no_error_feedback {
            return wrong(
                "--no-error-feedback",
                "gradients are not encoded",
                "choose a --codec, or leave it out",
            );
        }
        Ok(())
    }

    /// The update rule of all tensors.
    pub fn optimizer(&self) -> Optimizer {
        let rule = match self.optimizer.rule {
            Rule::Sgd(sgd) => Sgd { momentum: self.momentum(), ..sgd }.into(),
            rule => rule,
        };
        Optimizer { weight_decay: self.weight_decay, ..Optimizer::mean(rule, self.lr) }
    }

    /// Of sgd and nesterov.
    pub fn momentum(&self) -> f32 {
        self.momentum.unwrap_or(if self.mode.is_none_or(Mode::has_rounds) { MOMENTUM } else { 0.0 })
    }

    /// What is done to gradients before they are sent.
    pub fn compression(&self) -> Compression {
        let all = Compression::of(self.codec);
        let feedback = all.feedback && !self.no_error_feedback;
        Compression { feedback, momentum: self.codec_momentum, ..all }
    }

    /// What rows must look like.
    pub fn shape(&self) -> Shape {
        Shape { features: self.layers.inputs(), classes: self.layers.classes() }
    }

    /// Where training rows come from.
    pub fn source(&self) -> Source {
        self.data.source(self.scale)
    }

    /// Where test rows come from, where they have a file of their own.
    pub fn test_source(&self) -> Option<Source> {
        let file = self.test_data.clone()?;
        Some(Source { file, labels: self.test_labels.clone(), ..self.source() })
    }
}

/// Which rows `eval` looks at.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Rows {
    /// Those held out in training.
    Test,
    /// Those trained on.
    Train,
    /// All.
    All,
}

/// Classifies rows with a saved model and prints the share it gets right.
///
/// Scaling and the held-out rule are those the model was trained with, unless given. The last line is
/// `test_accuracy=0.9833 loss=0.07 rows=360 weights_sha256=…`.
#[derive(Debug, Clone, Args)]
pub struct EvalArgs {
    /// Model written by `train --save`
    #[arg(long, value_name = "FILE")]
    pub model: PathBuf,
    /// Where rows come from.
    #[command(flatten)]
    pub data: DataArgs,
    /// Divide every feature by this [default: as in training]
    #[arg(long, value_name = "X", help_heading = "Data")]
    pub scale: Option<f32>,
    /// Rows 0, N, 2N, … are the test rows [default: as in training]
    #[arg(long, value_name = "N", help_heading = "Data", value_parser = clap::value_parser!(u32).range(2..))]
    pub test_every: Option<u32>,
    /// Rows to look at [default: test, or all where training had a test file of its own]
    #[arg(long, value_enum, help_heading = "Data")]
    pub rows: Option<Rows>,
}

impl EvalArgs {
    /// Where rows come from; `trained_scale` is the model's.
    pub fn source(&self, trained_scale: f32) -> Result<Source, TrainError> {
        let scale = self.scale.unwrap_or(trained_scale);
        positive("--scale", scale)?;
        Ok(self.data.source(scale))
    }
}

fn positive(flag: &'static str, value: f32) -> Result<(), TrainError> {
    if value.is_finite() && value > 0.0 {
        return Ok(());
    }
    Err(TrainError::setting(flag, format!("{value} is not a number above 0"), "give a number such as 1"))
}
