// amqplib's tests of the URL without a port go to AMQP's default port, where a run like this has no broker. Loaded before
// them, this leads that port, and no other, to the broker of this run.
const net = require('node:net');

const broker = Number(process.env.CONFORMANCE_AMQP_PORT);
const connect = net.connect;

net.connect = (options, ...rest) => {
  const isDefault = options && typeof options === 'object' && Number(options.port) === 5672;
  return connect(isDefault ? { ...options, port: broker } : options, ...rest);
};
