//! What a step takes, and how much of it is the exchange: figures of epochs, and the lines that tell them.
//!
//! Figures are this worker's own; no clock is read here.

use std::time::Duration;

use crate::overlap::Spent;

/// The mean step of an epoch, in milliseconds.
#[derive(Debug, Clone, PartialEq)]
pub struct StepTimes {
    /// All of it.
    pub whole_ms: f64,
    /// Handing gradients over.
    pub sending_ms: f64,
    /// Waiting for new weights, by layer, the first one first.
    pub waiting_ms: Vec<f64>,
}

impl StepTimes {
    /// Of an epoch of so many steps.
    pub fn of(took: Duration, spent: &Spent, steps: u32) -> Self {
        let per_step = |time: &Duration| time.as_secs_f64() * 1e3 / f64::from(steps.max(1));
        Self {
            whole_ms: per_step(&took),
            sending_ms: per_step(&spent.sending),
            waiting_ms: spent.waiting.iter().map(per_step).collect(),
        }
    }

    /// Waiting for all layers.
    pub fn waited_ms(&self) -> f64 {
        self.waiting_ms.iter().sum()
    }

    /// What of the exchange the trainer feels.
    fn exchange_ms(&self) -> f64 {
        self.sending_ms + self.waited_ms()
    }

    fn line(&self, how: &str, epochs: usize) -> String {
        let layers: Vec<String> = self.waiting_ms.iter().map(|ms| format!("{ms:.3}")).collect();
        format!(
            "{how} a step takes {:.3} ms (median of {epochs} epochs): {:.3} computing, {:.3} sending, \
             {:.3} waiting for weights, by layer {}",
            self.whole_ms,
            self.whole_ms - self.exchange_ms(),
            self.sending_ms,
            self.waited_ms(),
            layers.join(" ")
        )
    }
}

/// What the epochs with overlap and those without say of a step.
pub fn lines(overlapped: &[StepTimes], separate: &[StepTimes]) -> Vec<String> {
    let (with, without) = (middle(overlapped), middle(separate));
    let told = [("with overlap", with, overlapped.len()), ("without overlap", without, separate.len())];
    let mut lines: Vec<String> = told
        .into_iter()
        .filter_map(|(how, times, epochs)| times.map(|times| times.line(how, epochs)))
        .collect();
    if let (Some(with), Some(without)) = (with, without) {
        // Waiting for the other workers is in both: their ratio would not say what share is hidden.
        let (seen, all) = (with.exchange_ms(), without.exchange_ms());
        let faster = without.whole_ms / with.whole_ms.max(1e-9);
        lines.push(format!(
            "with overlap the trainer spends {seen:.3} ms of a step on the exchange, without {all:.3} ms; \
             its step is {faster:.2} times as fast"
        ));
    }
    lines
}

/// The epoch whose steps took neither long nor short; its figures belong together, as medians of each would not.
fn middle(epochs: &[StepTimes]) -> Option<&StepTimes> {
    let mut sorted: Vec<&StepTimes> = epochs.iter().collect();
    sorted.sort_unstable_by(|a, b| a.whole_ms.total_cmp(&b.whole_ms));
    sorted.get(sorted.len().saturating_sub(1) / 2).copied()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn times(whole_ms: f64, sending_ms: f64, waiting_ms: &[f64]) -> StepTimes {
        StepTimes { whole_ms, sending_ms, waiting_ms: waiting_ms.to_vec() }
    }

    #[test]
    fn an_epoch_is_shared_out_over_its_steps() {
        let ms = Duration::from_millis;
        let spent = Spent { sending: ms(10), waiting: vec![ms(20), ms(40)] };
        let step = StepTimes::of(ms(100), &spent, 10);
        assert_eq!(step, times(10.0, 1.0, &[2.0, 4.0]));
        assert_eq!((step.waited_ms(), step.exchange_ms()), (6.0, 7.0));
        assert_eq!(StepTimes::of(ms(1), &Spent::default(), 0), times(1.0, 0.0, &[]));
    }

    #[test]
    fn the_middle_epoch_is_told_with_its_own_parts() {
        let epochs = [times(9.0, 1.0, &[5.0]), times(30.0, 0.0, &[0.0]), times(8.0, 2.0, &[1.0])];
        assert_eq!(
            lines(&epochs, &[]),
            ["with overlap a step takes 9.000 ms (median of 3 epochs): 3.000 computing, 1.000 sending, \
              5.000 waiting for weights, by layer 5.000"]
        );
        assert_eq!(lines(&[], &[]), [""; 0]);
    }

    #[test]
    fn both_ways_in_one_run_are_compared() {
        let told = lines(&[times(8.0, 1.0, &[1.0, 0.0])], &[times(10.0, 1.0, &[2.0, 1.0])]);
        assert_eq!(told.len(), 3);
        assert!(
            told[1].starts_with("without overlap a step takes 10.000 ms (median of 1 epochs"),
            "{told:?}"
        );
        assert_eq!(
            told[2],
            "with overlap the trainer spends 2.000 ms of a step on the exchange, without 4.000 ms; its step is \
             1.25 times as fast"
        );
    }
}
