package cordon

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/retry"

	"github.com/gpumem/gpumem/pkg/cli/cluster"
	"github.com/gpumem/gpumem/pkg/core/gpu"
	"github.com/gpumem/gpumem/pkg/kube/api"
)

// Mark writes whether a GPU of a node is cordoned, and prints what has become of it.
func Mark(ctx context.Context, r *cluster.Reader, out io.Writer, nodeName, which string, cordoned bool) (gpu.Device, error) {
	device, changed, err := Write(ctx, r, nodeName, which, cordoned)
	if err != nil {
		return device, err
	}
	news := map[bool]string{true: "cordoned", false: "uncordoned"}[cordoned]
	if !changed {
		news = map[bool]string{true: "was cordoned already", false: "was not cordoned"}[cordoned]
	}
	fmt.Fprintf(out, "gpu/%s/%d %s\n", nodeName, device.Index, news)
	return device, nil
}

// Write writes whether a GPU of a node is cordoned. It reports whether that was
// otherwise.
func Write(ctx context.Context, r *cluster.Reader, nodeName, which string, cordoned bool) (device gpu.Device, changed bool, err error) {
	err = retry.RetryOnConflict(retry.DefaultRetry, func() error {
		node, err := r.Client.CoreV1().Nodes().Get(ctx, nodeName, metav1.GetOptions{})
		if err != nil {
			return err
		}
		if device, err = gpuOf(r.Names, node, which); err != nil {
			return err
		}
		listed := r.Names.CordonedGPUs(node)
		at := slices.Index(listed, device.UUID)
		if changed = cordoned != (at >= 0); !changed {
			return nil
		}
		if cordoned {
			listed = append(listed, device.UUID)
		} else {
			listed = slices.Delete(listed, at, at+1)
		}
		var value any = api.FormatCordonedGPUs(listed)
		if len(listed) == 0 {
			value = nil // takes the annotation away
		}
		patch, err := json.Marshal(map[string]any{"metadata": map[string]any{
			"resourceVersion": node.ResourceVersion,
			"annotations":     map[string]any{r.Names.Cordoned(): value},
		}})
		if err != nil {
			return err
		}
		_, err = r.Client.CoreV1().Nodes().Patch(ctx, nodeName, types.MergePatchType, patch, metav1.PatchOptions{FieldManager: "kubectl-inspect-gpumem"})
		return err
	})
	return device, changed, err
}

// Find finds a GPU of a node, and changes nothing.
func Find(ctx context.Context, r *cluster.Reader, nodeName, which string) (gpu.Device, error) {
	node, err := r.Client.CoreV1().Nodes().Get(ctx, nodeName, metav1.GetOptions{})
	if err != nil {
		return gpu.Device{}, err
	}
	return gpuOf(r.Names, node, which)
}

// gpuOf finds a GPU of a node by its index, its UUID, or the beginning of that.
func gpuOf(names api.Names, node *v1.Node, which string) (gpu.Device, error) {
	inv, err := names.InventoryOf(node)
	if err != nil {
		return gpu.Device{}, fmt.Errorf("node %s: %w", node.Name, err)
	}
	var indexes []string
	var begin []gpu.Device
	for _, d := range inv.Devices {
		index := strconv.Itoa(d.Index)
		if which == index || which == string(d.UUID) {
			return d, nil
		}
		indexes = append(indexes, index)
		if which != "" && strings.HasPrefix(string(d.UUID), which) {
			begin = append(begin, d)
		}
	}
	if len(begin) == 1 {
		return begin[0], nil
	}
	if len(indexes) == 0 {
		return gpu.Device{}, fmt.Errorf("node %s offers no GPU memory", node.Name)
	}
	return gpu.Device{}, fmt.Errorf("node %s has no GPU %q: want an index, of %v, or a UUID, or as much of it as no other has", node.Name, which, indexes)
}
