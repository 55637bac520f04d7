//! The trainer's own copies of its gradients and weights, for tests of failures (`--poison`): every buffer that an operation has
//! returned holds a pattern until the next operation, and the pattern must be intact then. It must not know operations.
//!
//! Scenario: a server is stopped in the middle of a copy into a buffer, another server takes over, and the operation returns the
//! buffer. If the first server continues, it writes into memory that the trainer computes in. The trainer would not notice.

use anyhow::ensure;

/// A NaN that no computation yields. If a server still reads it as a gradient, the weights of all workers are NaN.
const POISON: u32 = 0x7FA5_5A5A;

/// What a trainer computes in while its buffers are poisoned.
#[derive(Debug)]
pub struct Own {
    /// Of the next operation.
    pub gradient: Vec<f32>,
    /// Of the last one.
    pub weights: Vec<f32>,
}

impl Own {
    /// An operation has returned these buffers.
    pub fn take(gradient: &mut [f32], weights: &mut [f32]) -> Self {
        let own = Self { gradient: gradient.to_vec(), weights: weights.to_vec() };
        for buffer in [gradient, weights] {
            buffer.fill(f32::from_bits(POISON));
        }
        own
    }

    /// An operation is to have these buffers.
    pub fn give(&self, gradient: &mut [f32], weights: &[f32]) -> anyhow::Result<()> {
        for (name, buffer) in [("gradient", &*gradient), ("weights", weights)] {
            let at = buffer.iter().position(|number| number.to_bits() != POISON);
            ensure!(
                at.is_none(),
                "somebody wrote into the buffer of the {name}, element {}, after its operation had returned it",
                at.unwrap_or_default()
            );
        }
        gradient.copy_from_slice(&self.gradient);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_buffer_that_is_written_between_two_operations_is_named() {
        for spoiled in [None, Some(0), Some(1)] {
            let mut buffers = [vec![1.0; 4], vec![2.0; 4]];
            let [gradient, weights] = &mut buffers;
            let mut own = Own::take(gradient, weights);
            assert_eq!((&own.gradient[..], &own.weights[..]), (&[1.0; 4][..], &[2.0; 4][..]));
            own.gradient.fill(3.0);
            spoiled.into_iter().for_each(|which: usize| buffers[which][2] = f32::NAN);
            let [gradient, weights] = &mut buffers;
            let given = own.give(gradient, weights).map_err(|error| error.to_string());
            match spoiled {
                None => assert_eq!((given, &gradient[..]), (Ok(()), &[3.0; 4][..])),
                Some(which) => {
                    let name = ["gradient", "weights"][which];
                    let text = given.unwrap_err();
                    assert!(text.contains(&format!("of the {name}, element 2")), "{text}");
                }
            }
        }
    }
}
