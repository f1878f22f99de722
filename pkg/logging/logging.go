package logging

import (
	"fmt"
	"io"

	"github.com/go-logr/zapr"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"k8s.io/klog/v2"
)

// New returns a logger that writes to w. Level is one of zap's (debug, info,
// warn, error); format is json or console.
func New(level, format string, w io.Writer) (*zap.Logger, error) {
	lowest, err := zapcore.ParseLevel(level)
	if err != nil {
		return nil, fmt.Errorf("log level %q: want debug, info, warn or error", level)
	}
	cfg := zap.NewProductionEncoderConfig()
	cfg.EncodeTime = zapcore.RFC3339NanoTimeEncoder
	cfg.EncodeDuration = zapcore.StringDurationEncoder
	var encoder zapcore.Encoder
	switch format {
	case "json":
		encoder = zapcore.NewJSONEncoder(cfg)
	case "console":
		encoder = zapcore.NewConsoleEncoder(cfg)
	default:
		return nil, fmt.Errorf("log format %q: want json or console", format)
	}
	return zap.New(zapcore.NewCore(encoder, zapcore.AddSync(w), lowest)), nil
}

// BridgeKlog sends what client-go and its kin log through klog to the logger.
// It changes klog for the whole process: call it once, from a main package.
func BridgeKlog(log *zap.Logger) {
	klog.SetLogger(zapr.NewLogger(log.Named("client-go")))
}
