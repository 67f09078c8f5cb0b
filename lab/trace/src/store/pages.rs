//! Pages of a column, of which none claims more than it holds.

use parquet::column::page::{Page, PageMetadata, PageReader};
use parquet::errors::{ParquetError, Result};

/// No value of a column of ours takes less: a number, or the length of bytes.
const VALUE_BYTES_MIN: usize = 4;

/// The library makes room for as many values as a dictionary says that it has, before it reads
/// any: a damaged file of a few bytes would take all memory.
pub(super) struct CheckedPages(pub(super) Box<dyn PageReader>);

impl PageReader for CheckedPages {
    fn get_next_page(&mut self) -> Result<Option<Page>> {
        self.0.get_next_page().and_then(checked)
    }

    fn peek_next_page(&mut self) -> Result<Option<PageMetadata>> {
        self.0.peek_next_page()
    }

    fn skip_next_page(&mut self) -> Result<()> {
        self.0.skip_next_page()
    }

    fn at_record_boundary(&mut self) -> Result<bool> {
        self.0.at_record_boundary()
    }
}

impl Iterator for CheckedPages {
    type Item = Result<Page>;

    fn next(&mut self) -> Option<Self::Item> {
        self.get_next_page().transpose()
    }
}

fn checked(page: Option<Page>) -> Result<Option<Page>> {
    if let Some(Page::DictionaryPage {
        buf, num_values, ..
    }) = &page
    {
        let values_max = (buf.len() / VALUE_BYTES_MIN) as u64;
        if u64::from(*num_values) > values_max {
            let message = format!(
                "a dictionary of {} bytes has {num_values} values",
                buf.len()
            );
            return Err(ParquetError::General(message));
        }
    }
    Ok(page)
}
