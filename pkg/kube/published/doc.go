// Package published finds the GPUs in ResourceSlices of dynamic resource allocation and the driver that
// publishes each. It also defines the names in gpumem's own ResourceSlices. If several drivers publish a
// GPU, the result contains one of them, always the same.
package published
