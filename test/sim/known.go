package sim

// Known issues: what the simulation has found, and what it therefore looks away
// from until that is mended. To see one, set its constant to false.

// knownSameName: the kubelet's PodResources names a pod by namespace and name. A
// pod made again under its name, while the kubelet still holds the one before
// it, is taken for that one: its annotation is made to say where the other is,
// until the kubelet has admitted it. Found with seed 554.
const knownSameName = false
