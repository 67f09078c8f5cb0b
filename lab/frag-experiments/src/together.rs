//! Threads that begin together.

use std::sync::Barrier;

use crate::error::FragError;

/// Runs `work` in so many threads at once, each with its number; the first error, if there is one.
pub(crate) fn together<T: Send>(
    threads: usize,
    work: impl Fn(usize) -> Result<T, FragError> + Sync,
) -> Result<Vec<T>, FragError> {
    let (barrier, work) = (Barrier::new(threads), &work);
    std::thread::scope(|scope| {
        let barrier = &barrier;
        let begun: Vec<_> = (0..threads)
            .map(|number| {
                scope.spawn(move || {
                    barrier.wait();
                    work(number)
                })
            })
            .collect();
        let ended = begun.into_iter().map(|thread| {
            thread
                .join()
                .unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        });
        ended.collect()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_come_in_order_and_an_error_is_one_for_all() {
        assert_eq!(together(3, |number| Ok(number * 2)).unwrap(), [0, 2, 4]);
        let failed = together(3, |number| match number {
            1 => Err(FragError::Interrupted),
            _ => Ok(()),
        });
        assert!(matches!(failed, Err(FragError::Interrupted)));
    }
}
