package nodeapi

import (
	"encoding/json"
	"fmt"
	"testing"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/zap"
	v1 "k8s.io/api/core/v1"

	"github.com/gpumem/gpumem/pkg/kube/api"
)

// FuzzTrim verifies that the plugin reads the same from a trimmed pod as from the whole pod, under the default
// domain and another.
func FuzzTrim(f *testing.F) {
	f.Add([]byte(`{"metadata":{"annotations":{"gpumem.dev/assignment":"{\"v\":1,\"gpus\":[{\"uuid\":\"GPU-a\",\"units\":3}]}"}},"spec":{"nodeName":"n1","containers":[{"name":"c","resources":{"limits":{"gpumem.dev/gpu-mem":"3","cpu":"1"}}}]},"status":{"startTime":"2026-01-01T00:00:00Z"}}`))
	f.Add([]byte(`{"metadata":{"annotations":{"aliyun.com/gpu-index":"2"}},"spec":{"initContainers":[{"restartPolicy":"Always","resources":{"requests":{"aliyun.com/gpu-mem":"1"}}}]},"status":{"phase":"Failed"}}`))
	f.Add([]byte(`{"spec":{"containers":[{"resources":{"limits":{"gpumem.dev/gpu-core":"30"}}}]}}`))
	f.Add([]byte(`{"metadata":{"deletionTimestamp":"2026-01-01T00:00:00Z","uid":"u"},"spec":{"priority":7,"containers":[{"name":"c","resources":{"limits":{"gpumem.dev/gpu-mem":"3"},"requests":{"gpumem.dev/gpu-mem":"3","cpu":"2"}}},{"name":"d","resources":{"requests":{"cpu":"1"}}}]}}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		var pod v1.Pod
		if json.Unmarshal(data, &pod) != nil {
			return
		}
		for _, domain := range []string{api.DefaultDomain, "aliyun.com"} {
			names, err := api.NewNames(domain)
			if err != nil {
				t.Fatal(err)
			}
			obj, err := NewPods(nil, names, "n1", zap.NewNop()).trim(pod.DeepCopy())
			if err != nil {
				t.Fatal(err)
			}
			small := obj.(*v1.Pod)
			if names.Holds(&pod) != names.Holds(small) || api.Terminal(&pod) != api.Terminal(small) || pod.Spec.NodeName != small.Spec.NodeName {
				t.Errorf("%s: trimmed to %v", data, small)
			}
			if !names.Holds(&pod) {
				continue
			}
			want, wantErr := names.Holding(&pod)
			got, err := names.Holding(small)
			if diff := cmp.Diff(want, got); diff != "" || fmt.Sprint(wantErr) != fmt.Sprint(err) {
				t.Errorf("%s: %v, trimmed %v (-full +trimmed):\n%s", data, wantErr, err, diff)
			}
			if diff := cmp.Diff(pod.Annotations[names.Index()], small.Annotations[names.Index()]); diff != "" {
				t.Errorf("%s: the indexes (-full +trimmed):\n%s", data, diff)
			}
		}
	})
}
