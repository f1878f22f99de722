package usageclient

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/http"
	"strconv"
	"sync"
	"time"

	"go.uber.org/zap"
	"golang.org/x/sync/errgroup"
	v1 "k8s.io/api/core/v1"

	"github.com/gpumem/gpumem/pkg/core/gpu"
	"github.com/gpumem/gpumem/pkg/report/boundedhttp"
)

// MaxAge is the time for which measured values remain valid.
const MaxAge = 15 * time.Second

// readTimeout bounds the time for reading all plugins: the viewer of the page waits for it.
const readTimeout = 2 * time.Second

// Pods lists pods of the process's namespace.
type Pods interface {
	PodsBy(ctx context.Context, namespace, selector string) ([]v1.Pod, error)
}

// Reader reads the metrics of the device plugins. It is safe for concurrent use.
type Reader struct {
	Log       *zap.Logger
	Pods      Pods
	Namespace string // the namespace of gpumem
	Now       func() time.Time

	mu     sync.Mutex // held during a read: concurrent callers wait for its result
	readAt time.Time
	used   map[gpu.UUID]int64
}

// Used returns the used memory of each GPU in MiB. It omits GPUs whose plugin does not respond.
func (r *Reader) Used() map[gpu.UUID]int64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	if now := r.Now(); r.readAt.IsZero() || now.Sub(r.readAt) >= MaxAge {
		ctx, cancel := context.WithTimeout(context.Background(), readTimeout)
		defer cancel()
		r.readAt, r.used = now, r.readPlugin(ctx)
	}
	return r.used
}

func (r *Reader) readPlugin(ctx context.Context) map[gpu.UUID]int64 {
	plugins, err := r.Pods.PodsBy(ctx, r.Namespace, boundedhttp.Plugins)
	if err != nil {
		r.Log.Warn("cannot list the device plugins, so the page does not show what is used", zap.Error(err))
		return nil
	}
	var mu sync.Mutex
	all := make(map[gpu.UUID]int64)
	var group errgroup.Group
	group.SetLimit(boundedhttp.AtOnce)
	for _, plugin := range plugins {
		group.Go(func() error {
			of, err := usedOf(ctx, &plugin)
			if err != nil {
				r.Log.Debug("a device plugin does not tell what is used", zap.String("pod", plugin.Name), zap.Error(err))
				return nil
			}
			mu.Lock()
			defer mu.Unlock()
			maps.Copy(all, of)
			return nil
		})
	}
	_ = group.Wait() // no goroutine fails
	return all
}

// usedOf reads the used memory of each GPU of one device plugin.
func usedOf(ctx context.Context, pod *v1.Pod) (map[gpu.UUID]int64, error) {
	port := boundedhttp.ProbesPort(pod)
	if port == 0 || pod.Status.PodIP == "" {
		return nil, errors.New("it has no address, or no port for metrics")
	}
	address := net.JoinHostPort(pod.Status.PodIP, strconv.Itoa(int(port)))
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+address+"/metrics", nil)
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
	out := make(map[gpu.UUID]int64)
	for _, m := range families[boundedhttp.GPUUsed].GetMetric() {
		if uuid, ok := boundedhttp.Labels(m)["uuid"]; ok {
			out[gpu.UUID(uuid)] = int64(m.GetGauge().GetValue()) >> 20
		}
	}
	return out, nil
}
