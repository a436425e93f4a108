//! Decoding within a memory budget.
//!
//! An element of a list may take one byte on the wire and hundreds in memory, so the length of a frame does not limit
//! the size of its message. [`Budgeted`] wraps a deserializer and charges every list for its claimed elements, at their
//! size in memory, before the first is decoded. Texts are free: they are not longer than their encoding.

use core::fmt;
use serde::de::{
    DeserializeSeed, Deserializer, EnumAccess, Error, SeqAccess, Unexpected, VariantAccess, Visitor,
};

/// The memory that a message may still use.
#[derive(Debug)]
pub(crate) struct DecodeBudget {
    pub(crate) left_bytes: usize,
    exceeded: bool,
}

impl DecodeBudget {
    pub(crate) fn new(bytes: usize) -> Self {
        Self { left_bytes: bytes, exceeded: false }
    }

    /// Whether a list claimed more than the budget.
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

/// Wraps a part of serde and charges the lists in it.
pub(crate) struct Budgeted<'b, T> {
    inner: T,
    budget: &'b mut DecodeBudget,
}

impl<'b, T> Budgeted<'b, T> {
    pub(crate) fn new(inner: T, budget: &'b mut DecodeBudget) -> Self {
        Self { inner, budget }
    }
}

/// Methods for values without lists.
macro_rules! forward {
    ($($method:ident)*) => {
        $(fn $method<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, D::Error> {
            self.inner.$method(visitor)
        })*
    };
}

/// Methods for values with parts, which may contain lists.
macro_rules! forward_parts {
    ($($method:ident($($argument:ident: $type:ty),*))*) => {
        $(fn $method<V: Visitor<'de>>(self, $($argument: $type,)* visitor: V) -> Result<V::Value, D::Error> {
            self.inner.$method($($argument,)* BudgetedVisitor::parts(visitor, self.budget))
        })*
    };
}

impl<'de, D: Deserializer<'de>> Deserializer<'de> for Budgeted<'_, D> {
    type Error = D::Error;

    forward! {
        deserialize_bool deserialize_i8 deserialize_i16 deserialize_i32 deserialize_i64 deserialize_i128
        deserialize_u8 deserialize_u16 deserialize_u32 deserialize_u64 deserialize_u128
        deserialize_f32 deserialize_f64 deserialize_char deserialize_str deserialize_string
        deserialize_bytes deserialize_byte_buf deserialize_unit deserialize_identifier
    }

    fn is_human_readable(&self) -> bool {
        self.inner.is_human_readable()
    }

    fn deserialize_unit_struct<V: Visitor<'de>>(
        self,
        name: &'static str,
        visitor: V,
    ) -> Result<V::Value, D::Error> {
        self.inner.deserialize_unit_struct(name, visitor)
    }

    fn deserialize_seq<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, D::Error> {
        self.inner.deserialize_seq(BudgetedVisitor { visitor, budget: self.budget, list: true })
    }

    forward_parts! {
        deserialize_option()
        deserialize_newtype_struct(name: &'static str)
        deserialize_tuple(len: usize)
        deserialize_tuple_struct(name: &'static str, len: usize)
        deserialize_struct(name: &'static str, fields: &'static [&'static str])
        deserialize_enum(name: &'static str, variants: &'static [&'static str])
    }

    // Messages have no maps and are not self-describing; these would evade the budget.

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

/// A visitor of a list, or of a value with parts.
struct BudgetedVisitor<'b, V> {
    visitor: V,
    budget: &'b mut DecodeBudget,
    list: bool,
}

impl<'b, V> BudgetedVisitor<'b, V> {
    fn parts(visitor: V, budget: &'b mut DecodeBudget) -> Self {
        Self { visitor, budget, list: false }
    }
}

impl<'de, V: Visitor<'de>> Visitor<'de> for BudgetedVisitor<'_, V> {
    type Value = V::Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.visitor.expecting(f)
    }

    fn visit_none<E: Error>(self) -> Result<V::Value, E> {
        self.visitor.visit_none()
    }

    fn visit_some<D: Deserializer<'de>>(self, inner: D) -> Result<V::Value, D::Error> {
        self.visitor.visit_some(Budgeted::new(inner, self.budget))
    }

    fn visit_newtype_struct<D: Deserializer<'de>>(self, inner: D) -> Result<V::Value, D::Error> {
        self.visitor.visit_newtype_struct(Budgeted::new(inner, self.budget))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, inner: A) -> Result<V::Value, A::Error> {
        let uncharged = inner.size_hint().filter(|_| self.list);
        if self.list && uncharged.is_none() {
            // Postcard gives no size hint for a list that claims more elements than bytes are left.
            self.budget.exceeded = true;
            return Err(A::Error::custom("list exceeds its frame"));
        }
        self.visitor.visit_seq(BudgetedElements { inner, budget: self.budget, uncharged })
    }

    fn visit_enum<A: EnumAccess<'de>>(self, inner: A) -> Result<V::Value, A::Error> {
        self.visitor.visit_enum(Budgeted::new(inner, self.budget))
    }
}

/// The elements of a list, or the parts of a tuple or struct.
struct BudgetedElements<'b, A> {
    inner: A,
    budget: &'b mut DecodeBudget,
    /// The length of a list that was not charged yet: the size of an element is known at the first one.
    uncharged: Option<usize>,
}

impl<'de, A: SeqAccess<'de>> SeqAccess<'de> for BudgetedElements<'_, A> {
    type Error = A::Error;

    fn next_element_seed<T: DeserializeSeed<'de>>(&mut self, seed: T) -> Result<Option<T::Value>, A::Error> {
        let count = self.uncharged.take().unwrap_or(0);
        if !self.budget.charge(count, size_of::<T::Value>()) {
            return Err(A::Error::custom("list exceeds the memory budget"));
        }
        self.inner.next_element_seed(Budgeted::new(seed, self.budget))
    }

    fn size_hint(&self) -> Option<usize> {
        self.inner.size_hint()
    }
}

impl<'de, T: DeserializeSeed<'de>> DeserializeSeed<'de> for Budgeted<'_, T> {
    type Value = T::Value;

    fn deserialize<D: Deserializer<'de>>(self, inner: D) -> Result<T::Value, D::Error> {
        self.inner.deserialize(Budgeted::new(inner, self.budget))
    }
}

impl<'de, 'b, A: EnumAccess<'de>> EnumAccess<'de> for Budgeted<'b, A> {
    type Error = A::Error;
    type Variant = Budgeted<'b, A::Variant>;

    fn variant_seed<T: DeserializeSeed<'de>>(self, seed: T) -> Result<(T::Value, Self::Variant), A::Error> {
        let (value, variant) = self.inner.variant_seed(seed)?;
        Ok((value, Budgeted::new(variant, self.budget)))
    }
}

impl<'de, A: VariantAccess<'de>> VariantAccess<'de> for Budgeted<'_, A> {
    type Error = A::Error;

    fn unit_variant(self) -> Result<(), A::Error> {
        self.inner.unit_variant()
    }

    fn newtype_variant_seed<T: DeserializeSeed<'de>>(self, seed: T) -> Result<T::Value, A::Error> {
        self.inner.newtype_variant_seed(Budgeted::new(seed, self.budget))
    }

    fn tuple_variant<V: Visitor<'de>>(self, len: usize, visitor: V) -> Result<V::Value, A::Error> {
        self.inner.tuple_variant(len, BudgetedVisitor::parts(visitor, self.budget))
    }

    fn struct_variant<V: Visitor<'de>>(
        self,
        fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, A::Error> {
        self.inner.struct_variant(fields, BudgetedVisitor::parts(visitor, self.budget))
    }
}
