//! A table with ids of place and salt: a lookup takes one step, and an old id never finds a new
//! value in the same place.

/// A table of at most 2^16 values.
#[derive(Debug)]
pub struct Table<T> {
    places: Vec<Option<(u32, T)>>,
    free: Vec<u16>,
    limit: usize,
    held: usize,
}

const PLACE_BITS: u32 = 16;

impl<T> Table<T> {
    /// Returns an empty table for at most `limit` values.
    #[must_use]
    pub fn new(limit: usize) -> Self {
        let limit = limit.min(1 << PLACE_BITS);
        Self { places: Vec::new(), free: Vec::new(), limit, held: 0 }
    }

    /// Returns the id that the next value gets with this salt; `None` when the table is full.
    pub fn next_id(&self, salt: u16) -> Option<u32> {
        let place = match self.free.last() {
            Some(place) => usize::from(*place),
            None if self.places.len() < self.limit => self.places.len(),
            None => return None,
        };
        Some(u32::from(salt) << PLACE_BITS | place as u32)
    }

    /// Adds a value; `salt` distinguishes its id from earlier ones. Returns `None` when the table
    /// is full.
    pub fn insert(&mut self, salt: u16, value: T) -> Option<u32> {
        let id = self.next_id(salt)?;
        let place = (id & 0xFFFF) as usize;
        if self.free.pop().is_none() {
            self.places.push(None);
        }
        self.places[place] = Some((id, value));
        self.held += 1;
        Some(id)
    }

    /// Returns the value of this id.
    #[must_use]
    pub fn get(&self, id: u32) -> Option<&T> {
        let place = self.places.get((id & 0xFFFF) as usize)?;
        place.as_ref().and_then(|(held, value)| (*held == id).then_some(value))
    }

    /// Returns the value of this id, to be changed.
    pub fn get_mut(&mut self, id: u32) -> Option<&mut T> {
        let place = self.places.get_mut((id & 0xFFFF) as usize)?;
        place.as_mut().and_then(|(held, value)| (*held == id).then_some(value))
    }

    /// Removes the value of this id.
    pub fn remove(&mut self, id: u32) -> Option<T> {
        self.get(id)?;
        self.free.push(id as u16);
        self.held -= 1;
        self.places[(id & 0xFFFF) as usize].take().map(|(_, value)| value)
    }

    /// Returns how many values there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.held
    }

    /// Returns whether there is no value.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.held == 0
    }

    /// Returns all values, by place.
    pub fn values(&self) -> impl Iterator<Item = &T> {
        self.places.iter().flatten().map(|(_, value)| value)
    }

    /// Returns all values, to be changed.
    pub fn values_mut(&mut self) -> impl Iterator<Item = &mut T> {
        self.places.iter_mut().flatten().map(|(_, value)| value)
    }

    /// Returns the ids of all values.
    pub fn ids(&self) -> impl Iterator<Item = u32> + '_ {
        self.places.iter().flatten().map(|(id, _)| *id)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reused_slot_has_new_id() {
        let mut table = Table::new(2);
        let first = table.insert(1, 'a').unwrap();
        let second = table.insert(2, 'b').unwrap();
        assert_eq!(table.insert(3, 'c'), None);
        assert_eq!(table.remove(first), Some('a'));
        assert_eq!((table.remove(first), table.get(first), table.len()), (None, None, 1));
        let third = table.insert(3, 'c').unwrap();
        assert_ne!(first, third);
        assert_eq!((table.get(third), table.get(second)), (Some(&'c'), Some(&'b')));
        assert_eq!(table.get(first), None);
        assert_eq!(table.get_mut(9), None);
        assert_eq!(table.ids().count(), 2);
    }
}
