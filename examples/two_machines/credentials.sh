# shellcheck shell=bash
# `. credentials.sh FOLDER SIDE`: the certificates and keys of a side, as every service and command
# reads them.
export TANDEM_TLS_CA=$1/ca.crt TANDEM_KEYS_FILE=$1/$2.keys
export TANDEM_TLS_CERTIFICATE=$1/$2.crt TANDEM_TLS_KEY=$1/$2.key
export TANDEM_CALL_KEY_FILE=$1/$2.call-key
if [ "$2" = edge ]; then export TANDEM_CLOUD_KEY_FILE=$1/edge.cloud-key; fi
