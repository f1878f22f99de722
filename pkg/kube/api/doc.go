// Package api converts between Kubernetes objects and the types of the core. It defines the names of
// resources and annotations, parses pods and nodes, and builds the Binding that carries an assignment
// to the API server.
//
// # Invariants
//
//   - A malformed value is an error. The error names the annotation, or the container and the resource,
//     and the expected value. A malformed value is never treated as absent or as a default.
//   - This version and the next can read every value that this version writes.
//   - The table annotations has one row for each annotation of the domain. The parser, the messages of
//     explain, the chart's admission policies (charts/gpumem/files/annotations.yaml) and the tables in
//     docs/pods.md and docs/reference.md use it. Labels of pods in the domain have no effect.
//
// # Decisions
//
// Each annotation that programs read is one versioned JSON value. Readers ignore unknown fields, so a
// newer writer may add fields. A change that an older reader would misread raises the version.
//
// The API server merges a Binding's annotations into the pod in the same guarded write that sets the
// pod's node (k8s.io/kubernetes/pkg/registry/core/pod/storage). So node and GPU become visible
// together, or not at all.
//
// State is stored in annotations instead of CRDs. A separate object would have to be written together
// with the pod, could be orphaned, and would need an installed CRD. An annotation has its pod's
// lifetime.
//
// A Reservation is the JSON message of a pod condition, because it must have the pod's lifetime and the
// pod's owner must not be able to write it. The API server ignores the status when a client creates or
// updates a pod, and the role edit does not permit pods/status. A client that may patch the status gains
// nothing by a Reservation, because it can also nominate the pod. As an exception to the first invariant,
// a malformed reservation counts as none: it lasts only a minute, and without it the pod waits like any
// other.
//
// A pod that was created with a node name may contain an assignment that its owner wrote. gpumem ignores
// the assignment until the pod has the condition PodScheduled; until then it charges the pod to each
// GPU of the node. A Binding sets this condition together with the node and the annotations. A pod created
// with a node name gets the condition when the kubelet admits it: no scheduler handles the pod, and
// owners cannot write conditions. After admission the device plugin corrects the assignment. The status
// of the condition is irrelevant, because a scheduler that missed a Binding reports that it found no
// node.
//
// An assignment with the field "held" records the kubelet's allocation. After admission, its number of
// GPUs overrides the annotation gpu-count; the units still follow from the spec. A pod's owner can write
// this field too, but gains no more by it than by gpu-count. The field "given" of the node's inventory
// makes up for such values: for pods whose annotations record too little, it lists the kubelet's
// allocation by UID. Older readers use only the pods' annotations, and older plugins write no "given".
// The entries of "given" name GPUs by index to be short, because the inventory may list every pod of the
// node, and all annotations of a node share 256 KiB.
package api
