// Package cluster reads a cluster for the commands of kubectl inspect gpumem: its nodes and
// pods as the scheduler's cache counts them, gpumem's own pods, the policy of its extender, what
// that remembers, and what the device plugins measure.
//
// # Invariants
//
//   - It changes nothing.
//   - What it says of a node and of a pod that waits is what package reach says: the page and the
//     metrics ask the same functions.
//   - A list that cannot be read is a problem that is named, never an empty list. The nodes are
//     the exception: without them there is nothing to show, and that is the error, unless the
//     command can answer from the pods of one namespace (see Unseen).
//   - A pod is believed to be gpumem's when it is in gpumem's namespace and a DaemonSet or
//     Deployment there has made it. Labels alone prove nothing: anybody may set them.
//   - What a pod of gpumem answers is read up to a bound.
//
// # Decisions
//
// Lists are read page by page and little is kept of each pod: a cluster may have very many, and
// few that matter here. When the server has forgotten where it was, the list is read once more,
// whole.
//
// The doctor's State is read here too, by the same lists of nodes and pods. It keeps the objects
// themselves, which its checks read: what Load keeps of them is too little for it.
//
// The page is not a user of this package. It reads the extender's watch, which has all that it
// needs, and is asked every two seconds; what both need of a node and of a pod is in reach.
package cluster
