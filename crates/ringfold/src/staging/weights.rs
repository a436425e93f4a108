//! The weights of an average in device memory, which peers send with their offers.

use crate::device_plan::DevicePlan;
use ringfold_kernels::{convert, reduce_into};
use ringfold_proto::descriptor::Descriptor;
use ringfold_proto::dtype::DType;
use ringfold_proto::reduce_op::ReduceOp;
use zerocopy::IntoBytes;

/// A weight, rounded to the type of the elements: values are multiplied by the number that is summed up.
pub(super) fn rounded(dtype: DType, weight: f64) -> f64 {
    wide(dtype, &narrow(dtype, weight))
}

/// Appends the weight of this peer to its offer, if the operation has weights.
pub(super) fn append(descriptor: &Descriptor, mut offer: Vec<u8>) -> Vec<u8> {
    if let Some(weight) = descriptor.weight {
        offer.extend(weight.value().to_le_bytes());
    }
    offer
}

/// Takes the weights from the offers of the other members, and returns the sum of all, with the bits of the host. None if the
/// operation has no weights, or an offer has none.
pub(super) fn take_sum(descriptor: &Descriptor, plan: &DevicePlan, offers: &mut [Vec<u8>]) -> Option<f64> {
    let own = descriptor.weight?.value();
    let mut weights = Vec::with_capacity(plan.members.len());
    for offer in offers {
        let (memory, weight) = offer.split_last_chunk()?;
        weights.push(f64::from_le_bytes(*weight));
        *offer = memory.to_vec();
    }
    weights.insert(plan.me.min(weights.len()), own);
    // The sum is the last element of the operation.
    let last = descriptor.count.checked_sub(1)?;
    let part = plan.parts.iter().find(|part| part.elements.contains(&last))?;
    let mut operands = part.order.iter().map(|rank| Some(narrow(descriptor.dtype, *weights.get(*rank)?)));
    let mut sum = operands.next()??;
    for operand in operands {
        reduce_into(descriptor.dtype, ReduceOp::Sum, &mut sum, &operand?);
    }
    Some(wide(descriptor.dtype, &sum))
}

fn narrow(dtype: DType, value: f64) -> Vec<u8> {
    let mut element = vec![0; dtype.bytes()];
    convert(DType::F64, dtype, value.as_bytes(), &mut element);
    element
}

fn wide(dtype: DType, element: &[u8]) -> f64 {
    let mut value = 0.0_f64;
    convert(dtype, DType::F64, element, value.as_mut_bytes());
    value
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device_plan::DevicePart;
    use ringfold_proto::descriptor::Weight;

    #[test]
    fn weights_are_summed_in_the_order_of_the_last_part_and_in_the_type_of_the_elements() {
        let part = |rank, order: [usize; 3], elements| DevicePart { rank, order: order.to_vec(), elements };
        let parts = vec![part(0, [0, 1, 2], 0..6), part(1, [2, 1, 0], 6..11)];
        let plan = DevicePlan { members: vec![Default::default(); 3], me: 1, parts, chunk_elements: 0 };
        let weight = Weight::new(0.1);
        let base = Descriptor::all_reduce(11, DType::F32, ReduceOp::Avg);
        let descriptor = Descriptor { weight, ..base };
        assert_eq!(append(&base, vec![7]), [7]);
        let with = |weight: f64| append(&Descriptor { weight: Weight::new(weight), ..base }, vec![1, 2, 3]);
        let mut offers = [with(0.7), with(1e-9)];
        let sum = take_sum(&descriptor, &plan, &mut offers).unwrap();
        assert_eq!(sum, f64::from((1e-9_f32 + 0.1_f32) + 0.7_f32));
        assert_eq!(offers, [[1, 2, 3], [1, 2, 3]]);
        assert_eq!(take_sum(&base, &plan, &mut offers), None);
        assert_eq!(take_sum(&descriptor, &plan, &mut offers), None, "an offer without a weight");
    }
}
