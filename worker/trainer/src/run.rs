//! `train` and `eval` from checked settings to the last line.
//!
//! Owns the order of things; arithmetic, files and reports live in the modules beside this one.

use std::io::Write;
use std::ops::Range;

use daemon::flight::Flight;
use daemon::notify::Notify;
use proto_common::config::Settings;

use crate::args::{EvalArgs, Rows, TrainArgs};
use crate::cluster;
use crate::data::{self, Dataset, Shape};
use crate::error::TrainError;
use crate::exchange::{Exchange, How, NamedTensor, Traffic};
use crate::layers::Layers;
use crate::mlp::{Mlp, evaluate};
use crate::model::{self, Model, weights_sha256};
use crate::overlap::Overlapped;
use crate::reference::Reference;
use crate::report::{Epoch, Report, say};
use crate::rng::{Rng, STREAM_JITTER};
use crate::shard::{self, EpochPlan};
use crate::svg;

/// Rows for training and for testing.
struct Rowset {
    train_data: Dataset,
    /// The file of test rows, where there is one.
    test_data: Option<Dataset>,
    train: Vec<u32>,
    test: Vec<u32>,
}

/// Runs `gradwire-worker train`; what rank 0 has to say goes to `out`, the result last. `settings` is asked
/// for the cluster's settings, for who is to hear how it goes, and for the process's recorder, unless the reference is trained.
pub fn train(
    args: &TrainArgs,
    settings: impl FnOnce() -> anyhow::Result<(Settings, Notify, Flight)>,
    out: &mut dyn Write,
) -> Result<(), TrainError> {
    args.check()?;
    for file in args.save.iter().chain(&args.plot) {
        model::check_writable(file)?;
    }
    // Files first: a bad row ends this worker before it takes part in anything.
    let rows = load_rows(args)?;
    let resumed = args.resume.as_deref().map(model::load).transpose()?;
    let done = resumed.as_ref().map_or(Ok(0), |model| check_resumed(args, model))?;
    let exchange: Box<dyn Exchange> = if args.reference {
        Box::new(Reference::new(args.workers))
    } else {
        cluster::connect(settings().map_err(TrainError::Exchange)?, args.poison)?
    };
    let tensors = resumed.map_or_else(|| args.layers.initial(args.seed), |model| model.tensors);
    let rng = Rng::new(args.seed, STREAM_JITTER + u64::from(exchange.rank()));
    let exchange =
        Overlapped::new(exchange, args.overlap, Some((rng, args.jitter_us)).filter(|(_, us)| *us > 0));
    train_with(args, &rows, &tensors, done, exchange, out)
}

fn load_rows(args: &TrainArgs) -> Result<Rowset, TrainError> {
    let train_data = data::load(&args.source(), args.shape())?;
    let Some(source) = args.test_source() else {
        let (train, test) = train_data.split(args.test_every);
        return Ok(Rowset { train_data, test_data: None, train, test });
    };
    let test_data = data::load(&source, args.shape())?;
    let all = |data: &Dataset| (0..data.len() as u32).collect();
    Ok(Rowset { train: all(&train_data), test: all(&test_data), train_data, test_data: Some(test_data) })
}

/// Epochs done, if this command line can go on from `model`.
fn check_resumed(args: &TrainArgs, model: &Model) -> Result<u32, TrainError> {
    if model.layers != args.layers {
        let cause = format!("the model has layers {}, not {}", model.layers, args.layers);
        return Err(TrainError::setting("--resume", cause, format!("pass --layers {}", model.layers)));
    }
    if model.seed != args.seed {
        let cause = format!("the model was trained with seed {}, not {}", model.seed, args.seed);
        return Err(TrainError::setting("--resume", cause, format!("pass --seed {}", model.seed)));
    }
    if model.epochs_done >= args.epochs {
        let cause =
            format!("the model has {} epochs behind it, {} are asked for", model.epochs_done, args.epochs);
        let fix = format!("pass --epochs with more than {}", model.epochs_done);
        return Err(TrainError::setting("--resume", cause, fix));
    }
    Ok(model.epochs_done)
}

fn train_with(
    args: &TrainArgs,
    rows: &Rowset,
    tensors: &[NamedTensor],
    done: u32,
    mut exchange: Overlapped,
    out: &mut dyn Write,
) -> Result<(), TrainError> {
    let workers = exchange.workers();
    let steps = shard::steps(rows.train.len(), workers as usize, args.batch);
    if steps == 0 {
        let cause = format!(
            "{workers} workers x {} rows are more than the {} there are",
            args.batch,
            rows.train.len()
        );
        return Err(TrainError::setting("--batch", cause, "lower --batch or give more rows"));
    }
    let how = How {
        optimizer: args.optimizer(),
        compression: args.compression(),
        mode: args.mode,
        backup_workers: args.backup_workers,
        rounds: steps as u64 * u64::from(args.epochs - done),
    };
    let before = exchange.init(tensors, &how).map_err(TrainError::Exchange)?.min(how.rounds);
    let (epochs_before, mut step) = (before / steps as u64, (before % steps as u64) as usize);
    // No more than `how.rounds` of them.
    let done = done + epochs_before as u32;
    let first = exchange.rank() == 0;
    let mut report = first.then(|| Report::new(done, args.epochs, steps));
    if let Some(report) = &report
        && before > 0
    {
        report.say(&format!("goes on after step {before}"), out)?;
    }
    let mut mlp = Mlp::new(&args.layers, args.batch);
    for epoch in done..args.epochs {
        if exchange.is_over() {
            // Where rounds end without some of the workers, this one was slower than others all the time.
            break;
        }
        let plan = EpochPlan::new(&rows.train, args.seed, epoch, workers, args.batch);
        let steps_of = std::mem::take(&mut step)..plan.steps();
        let ran = steps_of.len();
        let loss = train_epoch(
            &mut mlp,
            &rows.train_data,
            (&plan, steps_of),
            epoch,
            &mut exchange,
            report.as_ref(),
        )?;
        let (overlapped, spent) = exchange.end_epoch().map_err(TrainError::Exchange)?;
        if let Some(report) = &mut report {
            let samples = (ran * args.batch) as u64 * u64::from(workers);
            report.epoch(&Epoch { loss, samples, overlapped, spent }, out)?;
        }
    }
    exchange.finish_all().map_err(TrainError::Exchange)?;
    exchange.settle().map_err(TrainError::Exchange)?;
    // Before the goodbye: whoever is killed after it is not missed, and what it had not kept would be lost.
    let concluded = report.map_or(Ok(()), |report| conclude(args, rows, &exchange, &report, out));
    Box::new(exchange).leave().map_err(TrainError::Exchange)?;
    concluded
}

/// These steps of an epoch, of this process's ranks; returns their mean loss.
fn train_epoch(
    mlp: &mut Mlp,
    data: &Dataset,
    (plan, steps): (&EpochPlan, Range<usize>),
    epoch: u32,
    exchange: &mut dyn Exchange,
    report: Option<&Report>,
) -> Result<f64, TrainError> {
    let (mut total, mut samples) = (0.0, 0usize);
    for step in steps {
        if exchange.is_over() {
            break;
        }
        for rank in exchange.local_ranks() {
            let loss = mlp.step(data, plan.rows(step, rank), exchange).map_err(TrainError::Exchange)?;
            if !loss.is_finite() {
                return Err(TrainError::Diverged { epoch: epoch + 1, step: step as u64 + 1, loss });
            }
            total += loss;
            samples += plan.batch();
        }
        // Of one step it would be noise: the mean of the epoch so far.
        exchange.report("loss", total / samples.max(1) as f64);
        if let Some(report) = report {
            report.step();
        }
    }
    Ok(total / samples.max(1) as f64)
}

/// What rank 0 does with the result.
fn conclude(
    args: &TrainArgs,
    rows: &Rowset,
    exchange: &dyn Exchange,
    report: &Report,
    out: &mut dyn Write,
) -> Result<(), TrainError> {
    report.finish(out)?;
    let weights: Vec<&[f32]> = (0..args.layers.tensors()).map(|i| exchange.weights(i)).collect();
    let test_data = rows.test_data.as_ref().unwrap_or(&rows.train_data);
    let score = evaluate(&args.layers, &weights, test_data, &rows.test).map_err(TrainError::Exchange)?;
    let (first, losses) = report.losses();
    // Who comes again when all is trained keeps the plot of its life before.
    if let Some(file) = args.plot.as_ref().filter(|_| !losses.is_empty()) {
        let title = format!("{} on {} workers: training loss", args.layers, exchange.workers());
        model::write_atomic(file, svg::loss_curve(&title, first, losses).as_bytes())?;
    }
    if let Some(file) = &args.save {
        model::save(file, &trained(args, &weights, exchange.workers()))?;
    }
    say(
        out,
        &format!(
            "test_accuracy={:.4} weights_sha256={} transport={}{}",
            score.accuracy,
            weights_sha256(weights.iter().copied()),
            exchange.transport(),
            saved(args, exchange.traffic())
        ),
    )
}

/// What the codec saved, where there is one.
fn saved(args: &TrainArgs, traffic: Traffic) -> String {
    if args.codec.is_plain() {
        return String::new();
    }
    let Traffic { plain_bytes, sent_bytes } = traffic;
    let percent = 100.0 * (1.0 - sent_bytes as f64 / plain_bytes.max(1) as f64);
    let codec = args.codec;
    format!(" codec={codec} plain_bytes={plain_bytes} sent_bytes={sent_bytes} saved={percent:.1}%")
}

fn trained(args: &TrainArgs, weights: &[&[f32]], workers: u32) -> Model {
    let tensor = |(i, values): (usize, &&[f32])| {
        let (name, shape) = args.layers.tensor(i);
        NamedTensor { name, shape, values: values.to_vec() }
    };
    let note = |key: &str, value: String| (key.to_owned(), value);
    Model {
        layers: args.layers.clone(),
        seed: args.seed,
        epochs_done: args.epochs,
        scale: args.scale,
        test_every: if args.test_data.is_some() { 0 } else { args.test_every },
        notes: vec![
            note("batch", args.batch.to_string()),
            note("optimizer", args.optimizer.name.to_owned()),
            note("lr", args.lr.to_string()),
            note("momentum", args.momentum().to_string()),
            note("weight_decay", args.weight_decay.to_string()),
            note("workers", workers.to_string()),
            note("codec", args.codec.to_string()),
        ],
        tensors: weights.iter().enumerate().map(tensor).collect(),
    }
}

/// Runs `gradwire-worker eval`; the result goes to `out`.
pub fn eval(args: &EvalArgs, out: &mut dyn Write) -> Result<(), TrainError> {
    let model = model::load(&args.model)?;
    let layers: &Layers = &model.layers;
    let shape = Shape { features: layers.inputs(), classes: layers.classes() };
    let data = data::load(&args.source(model.scale)?, shape)?;
    let test_every = args.test_every.unwrap_or(model.test_every);
    let which = args.rows.unwrap_or(if test_every == 0 { Rows::All } else { Rows::Test });
    if test_every == 0 && which != Rows::All {
        let cause = "the model was trained without held-out rows";
        return Err(TrainError::setting("--rows", cause, "pass --rows all, or --test-every N"));
    }
    let (train, test) = data.split(test_every);
    let rows = match which {
        Rows::Test => test,
        Rows::Train => train,
        Rows::All => (0..data.len() as u32).collect(),
    };
    let weights: Vec<&[f32]> = model.tensors.iter().map(|t| t.values.as_slice()).collect();
    let score = evaluate(layers, &weights, &data, &rows).map_err(TrainError::Exchange)?;
    let kind = match which {
        Rows::Test => "test",
        Rows::Train => "train",
        Rows::All => "all",
    };
    let hash = weights_sha256(weights.iter().copied());
    let (accuracy, loss) = (score.accuracy, score.loss);
    say(
        out,
        &format!("{kind}_accuracy={accuracy:.4} loss={loss:.5} rows={} weights_sha256={hash}", score.rows),
    )
}

#[cfg(test)]
#[path = "run_tests.rs"]
mod tests;
