module github.com/xmtp-selfhosted/backend/cmd

go 1.26.0

require (
	github.com/xmtp-selfhosted/backend/pkg v0.0.0
	github.com/xmtp-selfhosted/backend/proto v0.0.0
	github.com/xmtp-selfhosted/backend/services/gateway v0.0.0
	github.com/xmtp-selfhosted/backend/services/publisher v0.0.0
	github.com/xmtp-selfhosted/backend/services/reader v0.0.0
	github.com/xmtp-selfhosted/backend/services/streamer v0.0.0
)

require (
	github.com/HdrHistogram/hdrhistogram-go v1.1.2 // indirect
	github.com/inconshreveable/mousetrap v1.1.0 // indirect
	github.com/jackc/pgpassfile v1.0.0 // indirect
	github.com/jackc/pgservicefile v0.0.0-20240606120523-5a60cdf6a761 // indirect
	github.com/jackc/pgx/v5 v5.13.0 // indirect
	github.com/spf13/cobra v1.10.2 // indirect
	github.com/spf13/pflag v1.0.9 // indirect
	golang.org/x/net v0.62.0 // indirect
	golang.org/x/sync v0.25.0 // indirect
	golang.org/x/sys v0.50.0 // indirect
	golang.org/x/text v0.44.0 // indirect
	google.golang.org/genproto/googleapis/rpc v0.0.0-20261110000943-09e21b237f2c // indirect
	google.golang.org/grpc v1.85.0 // indirect
	google.golang.org/protobuf v1.36.12 // indirect
)

replace github.com/xmtp-selfhosted/backend/proto => ../proto

replace github.com/xmtp-selfhosted/backend/pkg => ../pkg

replace github.com/xmtp-selfhosted/backend/services/publisher => ../services/publisher

replace github.com/xmtp-selfhosted/backend/services/reader => ../services/reader

replace github.com/xmtp-selfhosted/backend/services/streamer => ../services/streamer

replace github.com/xmtp-selfhosted/backend/services/gateway => ../services/gateway
