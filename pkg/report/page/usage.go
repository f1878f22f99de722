package page

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/http"
	"sync"
	"time"

	"go.uber.org/zap"
	"golang.org/x/sync/errgroup"
	v1 "k8s.io/api/core/v1"

	"github.com/gpumem/gpumem/pkg/core/gpu"
	"github.com/gpumem/gpumem/pkg/report/boundedhttp"
)

const (
	maxUsageAge = 15 * time.Second // time for which measured values remain valid
	readTimeout = 2 * time.Second  // for all plugins together: the viewer of the page waits for them
)

// Pods lists pods by label selector.
type Pods interface {
	PodsBy(ctx context.Context, namespace, selector string) ([]v1.Pod, error)
}

// UsageReader reads the used memory of each GPU from the metrics of the device plugins. Only one goroutine may use it
// at a time.
type UsageReader struct {
	Log       *zap.Logger
	Pods      Pods
	Namespace string // the namespace of gpumem
	Now       func() time.Time

	readAt time.Time
	used   map[gpu.UUID]int64
}

// Used returns the used memory of each GPU in MiB. It omits GPUs whose plugin does not respond.
func (r *UsageReader) Used() map[gpu.UUID]int64 {
	now := r.Now()
	if !r.readAt.IsZero() && now.Sub(r.readAt) < maxUsageAge {
		return r.used
	}
	r.readAt, r.used = now, make(map[gpu.UUID]int64)
	ctx, cancel := context.WithTimeout(context.Background(), readTimeout)
	defer cancel()
	plugins, err := r.Pods.PodsBy(ctx, r.Namespace, boundedhttp.Plugins)
	if err != nil {
		r.Log.Warn("cannot list the device plugins, so the page does not show what is used", zap.Error(err))
		return r.used
	}
	var mu sync.Mutex
	var group errgroup.Group
	group.SetLimit(boundedhttp.AtOnce)
	for _, plugin := range plugins {
		group.Go(func() error {
			used, err := readUsed(ctx, &plugin)
			if err != nil {
				r.Log.Debug("a device plugin does not tell what is used", zap.String("pod", plugin.Name), zap.Error(err))
			}
			mu.Lock()
			defer mu.Unlock()
			maps.Copy(r.used, used)
			return nil
		})
	}
	_ = group.Wait() // no goroutine fails
	return r.used
}

// readUsed reads the used memory of each GPU of one device plugin.
func readUsed(ctx context.Context, pod *v1.Pod) (map[gpu.UUID]int64, error) {
	port := boundedhttp.ProbesPort(pod)
	if port == 0 || pod.Status.PodIP == "" {
		return nil, errors.New("it has no address, or no port for metrics")
	}
	url := "http://" + net.JoinHostPort(pod.Status.PodIP, fmt.Sprint(port)) + "/metrics"
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return nil, err
	}
	answer, err := http.DefaultClient.Do(request)
	if err != nil {
		return nil, err
	}
	defer answer.Body.Close()
	if answer.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("it answers %s", answer.Status)
	}
	text, err := boundedhttp.Read(answer.Body)
	if err != nil {
		return nil, err
	}
	families, err := boundedhttp.Metrics(text)
	if err != nil {
		return nil, err
	}
	used := make(map[gpu.UUID]int64)
	for _, m := range families[boundedhttp.GPUUsed].GetMetric() {
		if uuid, ok := boundedhttp.Labels(m)["uuid"]; ok {
			used[gpu.UUID(uuid)] = int64(m.GetGauge().GetValue()) >> 20
		}
	}
	return used, nil
}
