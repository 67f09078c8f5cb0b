//! What a few numbers are on average.

/// The arithmetic mean; none of no numbers.
pub fn mean(values: impl IntoIterator<Item = f64>) -> Option<f64> {
    let (sum, count) = values
        .into_iter()
        .fold((0.0, 0.0), |(sum, count), value| (sum + value, count + 1.0));
    (count > 0.0).then(|| sum / count)
}

/// The geometric mean, of positive numbers; none of no numbers.
pub fn geometric_mean(values: impl IntoIterator<Item = f64>) -> Option<f64> {
    mean(values.into_iter().map(f64::ln)).map(f64::exp)
}

/// The median, of an even number of values the greater of the two in the middle; none of no
/// values.
pub fn median<T: Ord>(values: impl IntoIterator<Item = T>) -> Option<T> {
    let mut values: Vec<T> = values.into_iter().collect();
    let middle = values.len() / 2;
    (!values.is_empty()).then(|| {
        values.select_nth_unstable(middle);
        values.swap_remove(middle)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_has_no_average() {
        assert_eq!(mean([]), None);
        assert_eq!(geometric_mean([]), None);
        assert_eq!(median::<u64>([]), None);
    }

    #[test]
    fn averages_of_a_few() {
        assert_eq!(mean([1.0, 2.0, 6.0]), Some(3.0));
        assert!((geometric_mean([1.0, 2.0, 4.0]).unwrap() - 2.0).abs() < 1e-12);
        assert_eq!(median([5, 1, 9]), Some(5));
        assert_eq!(median([5, 1, 9, 7]), Some(7));
    }
}
