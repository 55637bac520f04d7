//! Tests of whole runs on a tiny data set: repeatable, independent of transport wrappers, resumable.

use clap::Parser;

use super::*;
use crate::args::RuleName;
use proto_common::optimizer::Optimizer;

#[derive(Parser)]
struct Cli {
    #[command(flatten)]
    train: TrainArgs,
}

#[derive(Parser)]
struct EvalCli {
    #[command(flatten)]
    eval: EvalArgs,
}

struct Bench {
    dir: tempfile::TempDir,
}

impl Bench {
    /// Two classes that a line separates.
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let row =
            |i: i32| format!("{},{},{}\n", i * 37 % 16, i * 11 % 16, i32::from(i * 37 % 16 > i * 11 % 16));
        std::fs::write(dir.path().join("d.csv"), (0..60).map(row).collect::<String>()).unwrap();
        Self { dir }
    }

    fn path(&self, name: &str) -> String {
        self.dir.path().join(name).display().to_string()
    }

    fn args(&self, more: &str) -> TrainArgs {
        let data = self.path("d.csv");
        let fixed =
            ["train", "--reference", "--data", &data, "--layers", "2,8,2", "--batch", "4", "--lr", "0.2"];
        Cli::try_parse_from(fixed.into_iter().chain(more.split_whitespace())).unwrap().train
    }

    /// Trains and returns the saved model.
    fn model(&self, more: &str) -> Model {
        let file = self.path("m.safetensors");
        run(&self.args(&format!("{more} --save {file}"))).unwrap();
        model::load(std::path::Path::new(&file)).unwrap()
    }
}

/// Trains and returns what was printed.
fn run(args: &TrainArgs) -> Result<String, TrainError> {
    let mut out = Vec::new();
    train(args, || anyhow::bail!("no cluster in these tests"), &mut out)
        .map(|()| String::from_utf8(out).unwrap())
}

fn bits(model: &Model) -> Vec<u32> {
    model.tensors.iter().flat_map(|t| t.values.iter().map(|v| v.to_bits())).collect()
}

#[test]
fn the_reference_is_deterministic_and_depends_on_what_it_should() {
    let bench = Bench::new();
    let base = bench.model("--workers 4 --epochs 5");
    assert_eq!(bits(&base), bits(&bench.model("--workers 4 --epochs 5")));
    assert_eq!(bits(&base), bits(&bench.model("--workers 4 --epochs 5 --jitter-us 20")));
    assert_ne!(bits(&base), bits(&bench.model("--workers 3 --epochs 5")));
    assert_ne!(bits(&base), bits(&bench.model("--workers 4 --epochs 5 --seed 2")));
    assert_ne!(bits(&base), bits(&bench.model("--workers 4 --epochs 5 --weight-decay 0.01")));
}

#[test]
fn overlap_changes_no_bit_and_is_told() {
    let bench = Bench::new();
    let base = bench.model("--workers 3 --epochs 4");
    assert_eq!(bits(&base), bits(&bench.model("--workers 3 --epochs 4 --overlap off")));
    assert_eq!(bits(&base), bits(&bench.model("--workers 3 --epochs 4 --overlap alternate")));
    let told = |more: &str| run(&bench.args(&format!("--epochs 2 {more}"))).unwrap();
    let (on, off, both) = (told(""), told("--overlap off"), told("--overlap alternate"));
    let has = |text: &str, start: &str| text.lines().any(|line| line.starts_with(start));
    assert!(has(&on, "with overlap a step takes ") && !has(&on, "without"), "{on}");
    assert!(has(&off, "without overlap a step takes ") && !has(&off, "with "), "{off}");
    assert!(has(&both, "with overlap a step") && has(&both, "without overlap a step"), "{both}");
    assert!(has(&both, "with overlap the trainer spends "), "{both}");
    assert!(on.lines().next().is_some_and(|line| line.contains("samples/s  waiting ")), "{on}");
}

#[test]
fn without_momentum_a_resumed_run_gives_the_bits_of_an_undisturbed_one() {
    let bench = Bench::new();
    let whole = bench.model("--epochs 6 --momentum 0");
    let half = bench.path("half.safetensors");
    run(&bench.args(&format!("--epochs 3 --momentum 0 --save {half}"))).unwrap();
    let rest = bench.model(&format!("--epochs 6 --momentum 0 --resume {half}"));
    assert_eq!(bits(&whole), bits(&rest));
    assert_eq!(rest.epochs_done, 6);
    for (more, wanted) in [
        ("--epochs 3", "--epochs with more than 3"),
        ("--seed 9", "pass --seed 1"),
        ("--layers 2,9,2", "2,8,2"),
    ] {
        let mut args = bench.args(&format!("--momentum 0 --resume {half}"));
        let other = Cli::try_parse_from(["train"].into_iter().chain(more.split(' '))).unwrap().train;
        match more.split(' ').next() {
            Some("--epochs") => args.epochs = other.epochs,
            Some("--seed") => args.seed = other.seed,
            _ => args.layers = other.layers,
        }
        let error = run(&args).unwrap_err().to_string();
        assert!(error.contains(wanted), "{error}");
    }
}

#[test]
fn training_learns_plots_and_evaluates() {
    let bench = Bench::new();
    let (plot, file) = (bench.path("loss.svg"), bench.path("m.safetensors"));
    let printed = run(&bench.args(&format!("--epochs 60 --plot {plot} --save {file}"))).unwrap();
    let last = printed.lines().last().unwrap();
    assert!(last.starts_with("test_accuracy=") && last.ends_with(" transport=reference"), "{last}");
    let hash = last.split(' ').nth(1).unwrap();
    assert!(std::fs::read_to_string(plot).unwrap().contains("<polyline"));
    let model = model::load(std::path::Path::new(&file)).unwrap();
    let data = data::load(&bench.args("").source(), Shape { features: 2, classes: 2 }).unwrap();
    let weights: Vec<&[f32]> = model.tensors.iter().map(|t| t.values.as_slice()).collect();
    let rows: Vec<u32> = (0..data.len() as u32).collect();
    assert!(evaluate(&model.layers, &weights, &data, &rows).unwrap().accuracy > 0.9);
    for rows in ["test", "train", "all"] {
        let args = ["eval", "--model", &file, "--data", &bench.path("d.csv"), "--rows", rows];
        let mut out = Vec::new();
        eval(&EvalCli::try_parse_from(args).unwrap().eval, &mut out).unwrap();
        let line = String::from_utf8(out).unwrap();
        assert!(line.starts_with(&format!("{rows}_accuracy=")) && line.contains(hash), "{line}");
    }
}

#[test]
fn what_cannot_be_trained_is_a_typed_error() {
    let bench = Bench::new();
    let error = |more: &str| run(&bench.args(more)).unwrap_err();
    assert!(error("--workers 13").to_string().contains("lower --batch"));
    assert!(run(&bench.args("--workers 12 --epochs 1")).is_ok());
    assert!(matches!(error("--momentum 1"), TrainError::Setting { .. }));
    for (flags, blamed) in [
        ("--optimizer adam --momentum 0.9", "--momentum"),
        ("--codec-momentum 0.5", "--codec-momentum"),
        ("--no-error-feedback", "--no-error-feedback"),
        ("--mode async", "--mode"),
        ("--backup-workers 1", "--mode"),
    ] {
        let told = error(flags).to_string();
        assert!(told.contains(blamed), "{flags}: {told}");
    }
    assert!(matches!(error("--scale 0"), TrainError::Setting { .. }));
    let other = error("--optimizer adam").to_string();
    assert!(other.contains("the reference computes sgd only"), "{other}");
    assert!(matches!(error("--weight-decay=-1"), TrainError::Setting { .. }));
    let mut cluster = bench.args("");
    cluster.reference = false;
    cluster.lr = f32::NAN;
    assert!(matches!(run(&cluster), Err(TrainError::Setting { flag: "--lr", .. })));
    let mut wild = bench.args("--epochs 50");
    wild.lr = 1e30;
    assert!(matches!(run(&wild), Err(TrainError::Diverged { .. })));
}

#[test]
fn momentum_is_left_out_where_gradients_are_of_older_weights() {
    let bench = Bench::new();
    let momentum = |more: &str| bench.args(more).momentum();
    for (flags, expected) in
        [("", 0.9), ("--mode sync", 0.9), ("--mode async", 0.0), ("--mode bounded:2", 0.0)]
    {
        assert_eq!(momentum(flags), expected, "{flags}");
    }
    assert_eq!(momentum("--mode async --momentum 0.5"), 0.5, "what is said counts");
    assert!(run(&bench.args("--mode sync --backup-workers 0 --epochs 1")).is_ok());
}

#[test]
fn every_rule_of_the_command_line_can_be_declared() {
    use clap::ValueEnum as _;
    let bench = Bench::new();
    let mut seen = Vec::new();
    for name in RuleName::value_variants() {
        let optimizer = TrainArgs { optimizer: *name, ..bench.args("") }.optimizer();
        assert_eq!(optimizer.validate(), Ok(()), "{name:?}");
        assert!(!seen.contains(&optimizer), "{name:?} is another one's rule");
        seen.push(optimizer);
    }
    assert_eq!(seen[0], Optimizer::sgd(0.2, 0.9, 0.0003), "the default");
}

/// Test accuracy and hash of a run on the digits, as the last line says them, and what was sent.
fn digits(more: &str) -> (f64, String, String) {
    let data = concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples/digits/digits.csv");
    let fixed =
        ["train", "--reference", "--data", data, "--layers", "64,48,10", "--epochs", "6", "--lr", "0.02"];
    let args = Cli::try_parse_from(fixed.into_iter().chain(more.split_whitespace())).unwrap().train;
    let printed = run(&args).unwrap();
    let last = printed.lines().last().unwrap().to_owned();
    let word = |name: &str| last.split(name).nth(1).unwrap().split(' ').next().unwrap().to_owned();
    (word("test_accuracy=").parse().unwrap(), word("weights_sha256="), last)
}

#[test]
fn every_codec_learns_as_well_as_none_and_gives_the_same_weights_again() {
    let (plain, hash, last) = digits("");
    assert!(plain > 0.9 && !last.contains("codec="), "{last}");
    for (codec, saved) in [
        ("f16", "saved=50.0%"),
        ("bf16", "saved=50.0%"),
        ("onebit", "saved=96.7%"),
        ("twobit:0.05", "saved=93.7%"),
        ("topk:0.05", "saved=90"),
        ("randomk:0.4", "saved=59"),
        ("dither:4", "saved=87"),
    ] {
        let (accuracy, coded_hash, last) = digits(&format!("--codec {codec}"));
        assert!(accuracy > plain - 0.05, "{codec}: {accuracy} instead of {plain}");
        // Those that draw random numbers, and one that does not.
        if matches!(&codec[..2], "on" | "ra" | "di") {
            assert_eq!(digits(&format!("--codec {codec}")).1, coded_hash, "{codec}");
        }
        assert!(coded_hash != hash && last.contains(saved), "{last}");
    }
}

/// What one bit leaves out is most of it.
#[test]
fn error_feedback_matters() {
    for codec in ["onebit", "topk:0.02", "twobit:0.05"] {
        let with = digits(&format!("--codec {codec}")).0;
        let without = digits(&format!("--codec {codec} --no-error-feedback")).0;
        assert!(with > without + 0.01, "{codec}: {with} with it, {without} without");
    }
}
