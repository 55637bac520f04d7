//! What a person sees of training: a progress bar or a line per epoch, and the loss curve in the terminal.
//!
//! Only rank 0 has one. Where standard error is no terminal the bar is hidden and lines go to the
//! output that the result goes to, so that a pipe keeps their order.

use std::io::{self, IsTerminal, Write};
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressStyle};
use textplots::{Chart, LabelBuilder, LabelFormat, Plot, Shape, TickDisplay, TickDisplayBuilder};

use crate::error::TrainError;
use crate::overlap::Spent;
use crate::steps::{self, StepTimes};

const BAR: &str = "{prefix} [{bar:32}] {percent:>3}%  {msg}  {elapsed} (eta {eta})";
/// Epochs whose times are kept, of each way: a middle one is found among so many as well as among a million.
const EPOCHS_TIMED_MAX: usize = 1_000;
const CURVE_WIDTH: u32 = 140;
const CURVE_HEIGHT: u32 = 48;

/// One epoch, as its end is told.
#[derive(Debug)]
pub struct Epoch {
    /// Mean loss.
    pub loss: f64,
    /// Samples all workers went through.
    pub samples: u64,
    /// Did the exchange overlap with computing?
    pub overlapped: bool,
    /// What it cost this worker.
    pub spent: Spent,
}

/// Follows training and remembers the loss of each epoch.
pub struct Report {
    bar: Option<ProgressBar>,
    epochs: u32,
    first_epoch: u32,
    losses: Vec<f64>,
    steps: u32,
    /// What steps took, of each epoch with overlap and without.
    overlapped: Vec<StepTimes>,
    separate: Vec<StepTimes>,
    started: Instant,
    epoch_started: Instant,
    samples: u64,
}

impl Report {
    /// Training runs from epoch `done` (from 0) to `epochs`, with `steps` in each.
    pub fn new(done: u32, epochs: u32, steps: usize) -> Self {
        let total = u64::from(epochs - done) * steps as u64;
        let bar = io::stderr().is_terminal().then(|| {
            // A style that does not parse leaves indicatif's own: still a bar.
            let style = ProgressStyle::with_template(BAR).unwrap_or_else(|_| ProgressStyle::default_bar());
            let bar = ProgressBar::new(total).with_style(style.progress_chars("=> "));
            bar.set_prefix(format!("epoch {}/{epochs}", done + 1));
            bar
        });
        // The trainer is no engine: it may look at the clock.
        let now = Instant::now();
        Self {
            bar,
            epochs,
            first_epoch: done + 1,
            losses: Vec::new(),
            steps: u32::try_from(steps).unwrap_or(u32::MAX).max(1),
            overlapped: Vec::new(),
            separate: Vec::new(),
            started: now,
            epoch_started: now,
            samples: 0,
        }
    }

    /// A line that is neither an epoch's nor the result.
    pub fn say(&self, line: &str, out: &mut dyn Write) -> Result<(), TrainError> {
        match &self.bar {
            Some(bar) => {
                bar.println(line);
                Ok(())
            }
            None => say(out, line),
        }
    }

    /// One more step is done.
    pub fn step(&self) {
        if let Some(bar) = &self.bar {
            bar.inc(1);
        }
    }

    /// An epoch is done.
    pub fn epoch(&mut self, epoch: &Epoch, out: &mut dyn Write) -> Result<(), TrainError> {
        let (loss, took) = (epoch.loss, self.epoch_started.elapsed());
        self.epoch_started = Instant::now();
        self.losses.push(loss);
        self.samples += epoch.samples;
        let rate = per_second(epoch.samples, took);
        let times = StepTimes::of(took, &epoch.spent, self.steps);
        let waited = 100.0 * times.waited_ms() / times.whole_ms.max(1e-9);
        let kept = if epoch.overlapped { &mut self.overlapped } else { &mut self.separate };
        if kept.len() < EPOCHS_TIMED_MAX {
            kept.push(times);
        }
        let done = self.first_epoch + self.losses.len() as u32 - 1;
        match &self.bar {
            Some(bar) => {
                bar.set_prefix(format!("epoch {}/{}", (done + 1).min(self.epochs), self.epochs));
                bar.set_message(format!("loss {loss:.5}  {rate:.0} samples/s  waiting {waited:.0} %"));
            }
            None => {
                let width = self.epochs.to_string().len();
                let progress = format!("epoch {done:>width$}/{}", self.epochs);
                say(out, &format!("{progress}  loss {loss:.5}  {rate:.0} samples/s  waiting {waited:.0} %"))?;
            }
        }
        Ok(())
    }

    /// Takes the bar away and prints the curve and the overall rate.
    pub fn finish(&self, out: &mut dyn Write) -> Result<(), TrainError> {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
        say(out, &curve(self.first_epoch, &self.losses))?;
        let elapsed = self.started.elapsed();
        let rate = per_second(self.samples, elapsed);
        let seconds = elapsed.as_secs_f64();
        say(
            out,
            &format!(
                "trained on {} samples in {seconds:.2} s, {rate:.0} samples/s over all workers",
                self.samples
            ),
        )?;
        steps::lines(&self.overlapped, &self.separate).iter().try_for_each(|line| say(out, line))
    }

    /// Mean loss of each epoch, and the number of the first.
    pub fn losses(&self) -> (u32, &[f64]) {
        (self.first_epoch, &self.losses)
    }
}

/// Prints one line at once, so that readers of a pipe see it when it happens.
pub fn say(out: &mut dyn Write, line: &str) -> Result<(), TrainError> {
    writeln!(out, "{line}").and_then(|()| out.flush()).map_err(TrainError::Stdout)
}

fn per_second(samples: u64, elapsed: Duration) -> f64 {
    samples as f64 / elapsed.as_secs_f64().max(1e-9)
}

/// The loss curve in braille characters.
pub fn curve(first_epoch: u32, losses: &[f64]) -> String {
    let point = |(i, loss): (usize, &f64)| ((first_epoch as usize + i) as f32, *loss as f32);
    let points: Vec<(f32, f32)> = losses.iter().enumerate().map(point).collect();
    let first = first_epoch as f32;
    let last = first + losses.len().saturating_sub(1).max(1) as f32;
    let highest = points.iter().map(|p| p.1).fold(f32::MIN_POSITIVE, f32::max);
    let lines = Shape::Lines(&points);
    let mut chart = Chart::new_with_y_range(CURVE_WIDTH, CURVE_HEIGHT, first, last, 0.0, highest);
    let epochs = LabelFormat::Custom(Box::new(|x| format!("epoch {x:.0}")));
    let mut chart = chart.lineplot(&lines).x_label_format(epochs).y_tick_display(TickDisplay::Sparse);
    chart = chart.y_label_format(LabelFormat::Custom(Box::new(|y| format!("{y:.3}"))));
    chart.axis();
    chart.figures();
    format!("training loss\n{chart}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn curves_are_drawn_for_any_number_of_epochs() {
        for losses in [&[][..], &[1.0][..], &[2.0, 1.0, 0.5][..], &[0.0, 0.0][..]] {
            let text = curve(3, losses);
            assert!(text.starts_with("training loss\n"), "{text}");
            assert!(text.contains("epoch 3"), "{text}");
        }
    }
}
