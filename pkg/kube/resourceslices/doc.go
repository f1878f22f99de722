// Package resourceslices finds the GPUs in ResourceSlices of dynamic resource allocation and the driver that
// publishes each. It also defines the names in gpumem's own ResourceSlices. If several drivers publish a
// GPU, the result contains the driver whose name is last in the alphabet.
package resourceslices
