//! Decoding that can't be made to take more memory than it was given.
//!
//! An element of a list may take one byte on the wire and hundreds in memory, so a bound on the frame
//! alone does not bound the message. [`Frugal`] wraps any deserializer and charges every list for the
//! elements that it claims to have, at their size in memory, before the first of them is made. Texts
//! need no charge: they are never longer than the bytes that they were read from.

use core::fmt;
use serde::de::{
    DeserializeSeed, Deserializer, EnumAccess, Error, SeqAccess, Unexpected, VariantAccess, Visitor,
};

/// What a message may still take up, and whether it tried to take more.
#[derive(Debug)]
pub(crate) struct Budget {
    left_bytes: usize,
    exceeded: bool,
}

impl Budget {
    /// A budget of that many bytes.
    pub(crate) fn new(bytes: usize) -> Self {
        Self { left_bytes: bytes, exceeded: false }
    }

    /// Whether a list was refused because it claimed more than there was.
    pub(crate) fn is_exceeded(&self) -> bool {
        self.exceeded
    }

    fn charge(&mut self, count: usize, element_bytes: usize) -> bool {
        let left = count.checked_mul(element_bytes).and_then(|bytes| self.left_bytes.checked_sub(bytes));
        self.left_bytes = left.unwrap_or(0);
        self.exceeded |= left.is_none();
        left.is_some()
    }
}

/// Anything of serde's, watched for the lists within.
pub(crate) struct Frugal<'b, T> {
    inner: T,
    budget: &'b mut Budget,
}

impl<'b, T> Frugal<'b, T> {
    /// Watches `inner`.
    pub(crate) fn new(inner: T, budget: &'b mut Budget) -> Self {
        Self { inner, budget }
    }
}

/// Methods for values that hold no others: there is nothing to watch.
macro_rules! plain {
    ($($method:ident)*) => {
        $(fn $method<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, D::Error> {
            self.inner.$method(visitor)
        })*
    };
}

impl<'de, D: Deserializer<'de>> Deserializer<'de> for Frugal<'_, D> {
    type Error = D::Error;

    plain! {
        deserialize_bool deserialize_i8 deserialize_i16 deserialize_i32 deserialize_i64 deserialize_i128
        deserialize_u8 deserialize_u16 deserialize_u32 deserialize_u64 deserialize_u128
        deserialize_f32 deserialize_f64 deserialize_char deserialize_str deserialize_string
        deserialize_bytes deserialize_byte_buf deserialize_unit deserialize_identifier
    }

    fn is_human_readable(&self) -> bool {
        self.inner.is_human_readable()
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, D::Error> {
        self.inner.deserialize_option(Watch::parts(visitor, self.budget))
    }

    fn deserialize_unit_struct<V: Visitor<'de>>(
        self,
        name: &'static str,
        visitor: V,
    ) -> Result<V::Value, D::Error> {
        self.inner.deserialize_unit_struct(name, visitor)
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(
        self,
        name: &'static str,
        visitor: V,
    ) -> Result<V::Value, D::Error> {
        self.inner.deserialize_newtype_struct(name, Watch::parts(visitor, self.budget))
    }

    fn deserialize_seq<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, D::Error> {
        self.inner.deserialize_seq(Watch { visitor, budget: self.budget, list: true })
    }

    fn deserialize_tuple<V: Visitor<'de>>(self, len: usize, visitor: V) -> Result<V::Value, D::Error> {
        self.inner.deserialize_tuple(len, Watch::parts(visitor, self.budget))
    }

    fn deserialize_tuple_struct<V: Visitor<'de>>(
        self,
        name: &'static str,
        len: usize,
        visitor: V,
    ) -> Result<V::Value, D::Error> {
        self.inner.deserialize_tuple_struct(name, len, Watch::parts(visitor, self.budget))
    }

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        name: &'static str,
        fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, D::Error> {
        self.inner.deserialize_struct(name, fields, Watch::parts(visitor, self.budget))
    }

    fn deserialize_enum<V: Visitor<'de>>(
        self,
        name: &'static str,
        variants: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, D::Error> {
        self.inner.deserialize_enum(name, variants, Watch::parts(visitor, self.budget))
    }

    // No message holds a map, and none describes itself: one that did would escape the budget here.

    fn deserialize_map<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, D::Error> {
        Err(D::Error::invalid_type(Unexpected::Map, &visitor))
    }

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, D::Error> {
        Err(D::Error::invalid_type(Unexpected::Other("anything"), &visitor))
    }

    fn deserialize_ignored_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, D::Error> {
        Err(D::Error::invalid_type(Unexpected::Other("anything"), &visitor))
    }
}

/// A visitor of something that has parts, or of a list.
struct Watch<'b, V> {
    visitor: V,
    budget: &'b mut Budget,
    list: bool,
}

impl<'b, V> Watch<'b, V> {
    fn parts(visitor: V, budget: &'b mut Budget) -> Self {
        Self { visitor, budget, list: false }
    }
}

impl<'de, V: Visitor<'de>> Visitor<'de> for Watch<'_, V> {
    type Value = V::Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.visitor.expecting(f)
    }

    fn visit_none<E: Error>(self) -> Result<V::Value, E> {
        self.visitor.visit_none()
    }

    fn visit_some<D: Deserializer<'de>>(self, inner: D) -> Result<V::Value, D::Error> {
        self.visitor.visit_some(Frugal::new(inner, self.budget))
    }

    fn visit_newtype_struct<D: Deserializer<'de>>(self, inner: D) -> Result<V::Value, D::Error> {
        self.visitor.visit_newtype_struct(Frugal::new(inner, self.budget))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, inner: A) -> Result<V::Value, A::Error> {
        let uncharged = if self.list {
            // A list without a length claims more elements than there are bytes left.
            let Some(count) = inner.size_hint() else {
                self.budget.exceeded = true;
                return Err(A::Error::custom("a list claims more elements than there are bytes"));
            };
            Some(count)
        } else {
            None
        };
        self.visitor.visit_seq(Elements { inner, budget: self.budget, uncharged })
    }

    fn visit_enum<A: EnumAccess<'de>>(self, inner: A) -> Result<V::Value, A::Error> {
        self.visitor.visit_enum(Frugal::new(inner, self.budget))
    }
}

/// The elements of a list, or the parts of a tuple or struct.
struct Elements<'b, A> {
    inner: A,
    budget: &'b mut Budget,
    /// The length of a list whose elements were not charged yet: their size is known at the first.
    uncharged: Option<usize>,
}

impl<'de, A: SeqAccess<'de>> SeqAccess<'de> for Elements<'_, A> {
    type Error = A::Error;

    fn next_element_seed<T: DeserializeSeed<'de>>(&mut self, seed: T) -> Result<Option<T::Value>, A::Error> {
        let count = self.uncharged.take().unwrap_or(0);
        if !self.budget.charge(count, size_of::<T::Value>()) {
            return Err(A::Error::custom("a list takes up too much memory"));
        }
        self.inner.next_element_seed(Frugal::new(seed, self.budget))
    }

    fn size_hint(&self) -> Option<usize> {
        self.inner.size_hint()
    }
}

impl<'de, T: DeserializeSeed<'de>> DeserializeSeed<'de> for Frugal<'_, T> {
    type Value = T::Value;

    fn deserialize<D: Deserializer<'de>>(self, inner: D) -> Result<T::Value, D::Error> {
        self.inner.deserialize(Frugal::new(inner, self.budget))
    }
}

impl<'de, 'b, A: EnumAccess<'de>> EnumAccess<'de> for Frugal<'b, A> {
    type Error = A::Error;
    type Variant = Frugal<'b, A::Variant>;

    fn variant_seed<T: DeserializeSeed<'de>>(self, seed: T) -> Result<(T::Value, Self::Variant), A::Error> {
        let (value, variant) = self.inner.variant_seed(seed)?;
        Ok((value, Frugal::new(variant, self.budget)))
    }
}

impl<'de, A: VariantAccess<'de>> VariantAccess<'de> for Frugal<'_, A> {
    type Error = A::Error;

    fn unit_variant(self) -> Result<(), A::Error> {
        self.inner.unit_variant()
    }

    fn newtype_variant_seed<T: DeserializeSeed<'de>>(self, seed: T) -> Result<T::Value, A::Error> {
        self.inner.newtype_variant_seed(Frugal::new(seed, self.budget))
    }

    fn tuple_variant<V: Visitor<'de>>(self, len: usize, visitor: V) -> Result<V::Value, A::Error> {
        self.inner.tuple_variant(len, Watch::parts(visitor, self.budget))
    }

    fn struct_variant<V: Visitor<'de>>(
        self,
        fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, A::Error> {
        self.inner.struct_variant(fields, Watch::parts(visitor, self.budget))
    }
}
