//! A timer that is set again and again and hardly ever rings.

use std::pin::Pin;
use std::task::Context;

use tokio::time::{Instant, Sleep};

/// Rings when something is late.
#[derive(Default)]
pub(super) struct Alarm(Option<Pin<Box<Sleep>>>);

impl Alarm {
    /// Whether it is this late already. If not, the task is woken then, or earlier.
    pub(super) fn rings(&mut self, deadline: Instant, context: &mut Context<'_>) -> bool {
        let timer = self.0.get_or_insert_with(|| Box::pin(tokio::time::sleep_until(deadline)));
        // One that rings too early costs less than one that is set anew for every request.
        if timer.deadline() > deadline {
            timer.as_mut().reset(deadline);
        }
        while timer.as_mut().poll(context).is_ready() {
            if timer.deadline() >= deadline {
                return true;
            }
            timer.as_mut().reset(deadline);
        }
        false
    }
}
