package nodepods

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"

	"github.com/gpumem/gpumem/pkg/core/placement"
	"github.com/gpumem/gpumem/pkg/kube/api"
)

// Uses writes the use of pods to their annotations.
type Uses struct {
	client kubernetes.Interface
	names  api.Names
}

// NewUses returns a writer.
func NewUses(client kubernetes.Interface, names api.Names) Uses { return Uses{client, names} }

// RecordUse writes the GPU memory that a pod uses, and the most that it used. The API server refuses it
// when the pod of that name is another by now.
func (u Uses) RecordUse(ctx context.Context, ref placement.PodRef, usedMiB, peakMiB int64) error {
	value, err := api.EncodeUse(api.Use{UsedMiB: usedMiB, PeakMiB: peakMiB, Time: time.Now().UTC().Truncate(time.Second)})
	if err != nil {
		return fmt.Errorf("write the use of pod %s: %w", ref, err)
	}
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"uid": ref.UID, "annotations": map[string]string{u.names.Used(): value}}})
	if err != nil {
		return fmt.Errorf("write the use of pod %s: %w", ref, err)
	}
	if _, err := u.client.CoreV1().Pods(ref.Namespace).Patch(ctx, ref.Name, types.MergePatchType, patch, metav1.PatchOptions{}); err != nil {
		return fmt.Errorf("write the use of pod %s: %w", ref, err)
	}
	return nil
}
