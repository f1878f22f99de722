package cordon

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"slices"
	"strconv"
	"strings"

	authenticationv1 "k8s.io/api/authentication/v1"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/retry"

	"github.com/gpumem/gpumem/pkg/cli/cluster"
	"github.com/gpumem/gpumem/pkg/core/gpu"
	"github.com/gpumem/gpumem/pkg/kube/api"
	"github.com/gpumem/gpumem/pkg/kube/cordons"
)

// SetCordon cordons or uncordons a GPU and prints the result. If reason is empty, it records defaultReason.
func SetCordon(ctx context.Context, r *cluster.Reader, out io.Writer, nodeName, gpuName string, cordoned bool, reason, defaultReason string) (gpu.Device, error) {
	device, changed, err := WriteCordon(ctx, r, nodeName, gpuName, cordoned, cmp.Or(reason, defaultReason))
	if err != nil {
		return device, err
	}
	result := newState(cordoned)
	if !changed {
		result = map[bool]string{true: "was cordoned already", false: "was not cordoned"}[cordoned]
		if reason != "" {
			result += ", and its reason is not changed: uncordon the GPU first"
		}
	}
	fmt.Fprintf(out, "gpu/%s/%d %s\n", nodeName, device.Index, result)
	return device, nil
}

// PrintPlan prints the change that SetCordon would make to a GPU.
func PrintPlan(out io.Writer, nodeName string, device gpu.Device, cordoned bool) {
	fmt.Fprintf(out, "gpu/%s/%d %s (dry run)\n", nodeName, device.Index, newState(cordoned))
}

// newState returns the word for the new state of a GPU.
func newState(cordoned bool) string {
	if cordoned {
		return "cordoned"
	}
	return "uncordoned"
}

// WriteCordon cordons or uncordons a GPU, and records the author and the reason of a new cordon. It reports
// whether the state changed. If the GPU is already cordoned, the author and the reason remain.
func WriteCordon(ctx context.Context, r *cluster.Reader, nodeName, gpuName string, cordoned bool, reason string) (device gpu.Device, changed bool, err error) {
	note := cordons.Note{Reason: reason}
	if cordoned {
		note.By = author(ctx, r)
	}
	err = retry.RetryOnConflict(retry.DefaultRetry, func() error {
		changed = false
		node, err := r.Client.CoreV1().Nodes().Get(ctx, nodeName, metav1.GetOptions{})
		if err != nil {
			return err
		}
		if device, err = selectGPU(r.Names, node, gpuName); err != nil {
			return err
		}
		listed := r.Names.CordonedGPUs(node)
		position := slices.Index(listed, device.UUID)
		if changed = cordoned != (position >= 0); !changed {
			return nil
		}
		notes := cordons.ParseNotes(r.Names, node)
		maps.DeleteFunc(notes, func(id gpu.UUID, _ cordons.Note) bool { return id == device.UUID || !slices.Contains(listed, id) })
		if cordoned {
			listed = append(listed, device.UUID)
			if note != (cordons.Note{}) {
				notes = maps.Collect(maps.All(notes)) // notes may be nil
				notes[device.UUID] = note
			}
		} else {
			listed = slices.Delete(listed, position, position+1)
		}
		return patch(ctx, r, node, listed, notes)
	})
	return device, changed, err
}

// patch writes the cordoned GPUs and the notes of a node. It fails if the node has changed since the caller
// read it.
func patch(ctx context.Context, r *cluster.Reader, node *v1.Node, listed []gpu.UUID, notes map[gpu.UUID]cordons.Note) error {
	values := map[string]any{r.Names.Cordoned(): nil, r.Names.CordonReasons(): nil} // nil removes an annotation
	if len(listed) > 0 {
		values[r.Names.Cordoned()] = api.FormatCordonedGPUs(listed)
	}
	if len(notes) > 0 {
		value, err := cordons.Format(notes)
		if err != nil {
			return err
		}
		values[r.Names.CordonReasons()] = value
	}
	data, err := json.Marshal(map[string]any{"metadata": map[string]any{"resourceVersion": node.ResourceVersion, "annotations": values}})
	if err != nil {
		return err
	}
	_, err = r.Client.CoreV1().Nodes().Patch(ctx, node.Name, types.MergePatchType, data, metav1.PatchOptions{FieldManager: "kubectl-inspect-gpumem"})
	return err
}

// author returns the user name that the API server reports; empty on an error.
func author(ctx context.Context, r *cluster.Reader) string {
	review, err := r.Client.AuthenticationV1().SelfSubjectReviews().Create(ctx, &authenticationv1.SelfSubjectReview{}, metav1.CreateOptions{})
	if err != nil {
		return "" // the cordon is more important than its author
	}
	return review.Status.UserInfo.Username
}

// GetGPU reads a node and returns one of its GPUs, which selectGPU finds by gpuName.
func GetGPU(ctx context.Context, r *cluster.Reader, nodeName, gpuName string) (gpu.Device, error) {
	node, err := r.Client.CoreV1().Nodes().Get(ctx, nodeName, metav1.GetOptions{})
	if err != nil {
		return gpu.Device{}, err
	}
	return selectGPU(r.Names, node, gpuName)
}

// selectGPU returns a GPU of a node by its index, its UUID, or a unique prefix of the UUID.
func selectGPU(names api.Names, node *v1.Node, gpuName string) (gpu.Device, error) {
	inv, err := names.InventoryOf(node)
	if err != nil {
		return gpu.Device{}, fmt.Errorf("node %s: %w", node.Name, err)
	}
	var indexes []string
	var matches []gpu.Device
	for _, d := range inv.Devices {
		index := strconv.Itoa(d.Index)
		if gpuName == index || gpuName == string(d.UUID) {
			return d, nil
		}
		indexes = append(indexes, index)
		if gpuName != "" && strings.HasPrefix(string(d.UUID), gpuName) {
			matches = append(matches, d)
		}
	}
	if len(matches) == 1 {
		return matches[0], nil
	}
	if len(indexes) == 0 {
		return gpu.Device{}, fmt.Errorf("node %s offers no GPU memory", node.Name)
	}
	return gpu.Device{}, fmt.Errorf("node %s has no GPU %q: want an index (one of %v), a UUID, or a unique prefix of a UUID", node.Name, gpuName, indexes)
}
