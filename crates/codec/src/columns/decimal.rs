//! Codes floating-point numbers that are, bit by bit, an integer divided by a power of ten: prices, temperatures,
//! percentages.

/// Largest number of digits behind the point.
pub(crate) const MAX_DIGITS: u8 = 9;
/// Powers of ten, all of them exact.
const POWERS: [f64; 1 + MAX_DIGITS as usize] = [1.0, 1e1, 1e2, 1e3, 1e4, 1e5, 1e6, 1e7, 1e8, 1e9];
/// Largest absolute value of the integer: floating-point numbers do not have more digits.
const DECIMAL_MAX: f64 = 9e15;

/// Returns the integer that gives `float`, bit by bit, when it is divided by ten to the power of `digits`; `None` if
/// there is none.
pub(crate) fn as_decimal(float: f64, digits: u8) -> Option<i64> {
    let scaled = (float * POWERS[usize::from(digits)]).round();
    // NaN becomes 0, which is another number.
    let whole = scaled as i64;
    let same = from_decimal(whole, digits).to_bits() == float.to_bits();
    (same && scaled.abs() <= DECIMAL_MAX).then_some(whole)
}

/// Inverts [`as_decimal`].
#[inline(always)]
pub(crate) fn from_decimal(whole: i64, digits: u8) -> f64 {
    whole as f64 / POWERS[usize::from(digits)]
}

/// Returns the fewest digits behind the point with which at least `part` of ten `floats` are decimals.
pub(crate) fn digits_of(floats: &[f64], part: usize) -> Option<u8> {
    let fits = |digits: u8| {
        let all = floats.iter().filter(|&&float| as_decimal(float, digits).is_some()).count();
        all > 0 && all * 10 >= floats.len() * part
    };
    (0..=MAX_DIGITS).find(|&digits| fits(digits))
}
