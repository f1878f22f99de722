// Package gpu defines the types that all parts of gpumem share: units, devices, the inventory of a
// node, and the IDs that the kubelet allocates.
//
// # Invariants
//
//   - A UUID identifies a device. The index is for display only: it may change with a reboot.
//
//   - Memory is counted in Units. A unit is Inventory.UnitMiB MiB; all devices of a node have the
//     same unit.
//
//   - On a node that offers its GPUs in shares, a unit is a tenth of its device (Device.ShareMiB),
//     and the inventory has no unit.
//
//   - A slot is one unit of one device, or one per cent of its cores. Its ID names the device, so a
//     list of IDs is a complete assignment.
//
//   - Programs compare a Status. Package reasons renders it for people, and no program parses the text.
//
// # Decisions
//
// Units are signed. A GPU can shrink below the allocated amount if the GPU is replaced or the unit
// grows; an unsigned remainder would then wrap around to a huge amount of free memory.
//
// Shares are units: each device of a node with shares has ten. Code that counts units works for both
// kinds of nodes; only limits and printed amounts need the MiB of a unit. A node refuses requests of
// the other kind (placement.Request.InShares), so shares and amounts of memory are never added up.
// Shares reserve no cores: a pod with three tenths of a GPU's units gets three tenths of its cores. The
// unit is per device, because the GPUs of one node may differ. There is no resource per size, because
// pods need not know sizes.
//
// A slot ID contains eight hexadecimal digits of the UUID. The index does not work in its place,
// because the kubelet keeps IDs over a reboot. The whole UUID would be too long, because the kubelet
// receives all IDs in one message of at most 4 MiB.
package gpu
