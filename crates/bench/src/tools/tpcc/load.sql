-- The nine tables of TPC-C with the keys and indexes that sysbench-tpcc gives them, and their rows as of before the first
-- transaction. Our own generator, not comparable with published TPC-C results. Deterministic but for the times.
-- psql variables: warehouses; random_strings: 1 for strings as the specification wants them, each character drawn; 0 for strings
-- as sysbench-tpcc makes them, one letter repeated.
SELECT setseed(0.5);

\if :random_strings
CREATE FUNCTION tpcc_text(low int, high int) RETURNS text VOLATILE LANGUAGE plpgsql AS $$
DECLARE
  wanted int := low + floor(random() * (high - low + 1))::int;
  made text := '';
BEGIN
  WHILE length(made) < wanted LOOP
    made := made || translate(encode(sha512(random()::text::bytea), 'base64'), E'+/=\n', 'Pf');
  END LOOP;
  RETURN left(made, wanted);
END $$;
\else
CREATE FUNCTION tpcc_text(low int, high int) RETURNS text VOLATILE LANGUAGE plpgsql AS $$
BEGIN
  RETURN repeat(chr(97 + floor(random() * 26)::int - 32 * floor(random() * 2)::int), low + floor(random() * (high - low + 1))::int);
END $$;
\endif

-- From low to high, each as often; and as the specification's NURand, some far more often. (Not in TPC-C: what a run adds to
-- NURand's result to be told from another.)
CREATE FUNCTION tpcc_int(low int, high int) RETURNS int VOLATILE LANGUAGE sql AS $$ SELECT low + floor(random() * (high - low + 1))::int $$;
CREATE FUNCTION tpcc_uneven(mask int, low int, high int) RETURNS int VOLATILE LANGUAGE sql AS
$$ SELECT low + (floor(random() * (mask + 1))::int | (low + floor(random() * (high - low + 1))::int)) % (high - low + 1) $$;
CREATE FUNCTION tpcc_zip() RETURNS text VOLATILE LANGUAGE sql AS $$ SELECT lpad(floor(random() * 10000)::int::text, 4, '0') || '11111' $$;
CREATE FUNCTION tpcc_last_name(n int) RETURNS text IMMUTABLE LANGUAGE sql AS
$$ SELECT a[n / 100 + 1] || a[n / 10 % 10 + 1] || a[n % 10 + 1]
   FROM (VALUES (array['BAR', 'OUGHT', 'ABLE', 'PRI', 'PRES', 'ESE', 'ANTI', 'CALLY', 'ATION', 'EING'])) v(a) $$;

CREATE TABLE warehouse (w_id smallint PRIMARY KEY, w_name varchar(10), w_street_1 varchar(20), w_street_2 varchar(20),
  w_city varchar(20), w_state char(2), w_zip char(9), w_tax decimal(4,2), w_ytd decimal(12,2));
INSERT INTO warehouse
SELECT w, tpcc_text(6, 10), tpcc_text(10, 20), tpcc_text(10, 20), tpcc_text(10, 20), tpcc_text(2, 2), tpcc_zip(),
       tpcc_int(0, 20) / 100.0, 300000
FROM generate_series(1, :warehouses) w;

CREATE TABLE district (d_id smallint, d_w_id smallint, d_name varchar(10), d_street_1 varchar(20), d_street_2 varchar(20),
  d_city varchar(20), d_state char(2), d_zip char(9), d_tax decimal(4,2), d_ytd decimal(12,2), d_next_o_id int,
  PRIMARY KEY (d_w_id, d_id));
INSERT INTO district
SELECT d, w, tpcc_text(6, 10), tpcc_text(10, 20), tpcc_text(10, 20), tpcc_text(10, 20), tpcc_text(2, 2), tpcc_zip(),
       tpcc_int(0, 20) / 100.0, 30000, 3001
FROM generate_series(1, :warehouses) w, generate_series(1, 10) d;

CREATE TABLE item (i_id int PRIMARY KEY, i_im_id int, i_name varchar(24), i_price decimal(5,2), i_data varchar(50));
INSERT INTO item
SELECT i, tpcc_int(1, 10000), tpcc_text(14, 24), tpcc_int(100, 10000) / 100.0, tpcc_text(26, 50) FROM generate_series(1, 100000) i;

CREATE TABLE stock (s_i_id int, s_w_id smallint, s_quantity smallint, s_dist_01 char(24), s_dist_02 char(24), s_dist_03 char(24),
  s_dist_04 char(24), s_dist_05 char(24), s_dist_06 char(24), s_dist_07 char(24), s_dist_08 char(24), s_dist_09 char(24),
  s_dist_10 char(24), s_ytd decimal(8,0), s_order_cnt smallint, s_remote_cnt smallint, s_data varchar(50));
INSERT INTO stock
SELECT i, w, tpcc_int(10, 100), tpcc_text(24, 24), tpcc_text(24, 24), tpcc_text(24, 24), tpcc_text(24, 24), tpcc_text(24, 24),
       tpcc_text(24, 24), tpcc_text(24, 24), tpcc_text(24, 24), tpcc_text(24, 24), tpcc_text(24, 24), 0, 0, 0, tpcc_text(26, 50)
FROM generate_series(1, :warehouses) w, generate_series(1, 100000) i;
ALTER TABLE stock ADD PRIMARY KEY (s_w_id, s_i_id);
CREATE INDEX stock_item ON stock (s_i_id);

CREATE TABLE customer (c_id int, c_d_id smallint, c_w_id smallint, c_first varchar(16), c_middle char(2), c_last varchar(16),
  c_street_1 varchar(20), c_street_2 varchar(20), c_city varchar(20), c_state char(2), c_zip char(9), c_phone char(16),
  c_since timestamp, c_credit char(2), c_credit_lim bigint, c_discount decimal(4,2), c_balance decimal(12,2),
  c_ytd_payment decimal(12,2), c_payment_cnt smallint, c_delivery_cnt smallint, c_data text);
INSERT INTO customer
SELECT c, d, w, tpcc_text(8, 16), 'OE', tpcc_last_name(CASE WHEN c <= 1000 THEN c - 1 ELSE tpcc_uneven(255, 0, 999) END),
       tpcc_text(10, 20), tpcc_text(10, 20), tpcc_text(10, 20), tpcc_text(2, 2), tpcc_zip(),
       lpad(floor(random() * 1e16)::bigint::text, 16, '0'), now(), CASE WHEN random() < 0.1 THEN 'BC' ELSE 'GC' END, 50000,
       tpcc_int(0, 50) / 100.0, -10, 10, 1, 0, tpcc_text(300, 500)
FROM generate_series(1, :warehouses) w, generate_series(1, 10) d, generate_series(1, 3000) c;
ALTER TABLE customer ADD PRIMARY KEY (c_w_id, c_d_id, c_id);
CREATE INDEX customer_name ON customer (c_w_id, c_d_id, c_last, c_first);

CREATE TABLE history (h_c_id int, h_c_d_id smallint, h_c_w_id smallint, h_d_id smallint, h_w_id smallint, h_date timestamp,
  h_amount decimal(6,2), h_data varchar(24));
INSERT INTO history
SELECT c, d, w, d, w, now(), 10, tpcc_text(12, 24) FROM generate_series(1, :warehouses) w, generate_series(1, 10) d, generate_series(1, 3000) c;
CREATE INDEX history_customer ON history (h_c_w_id, h_c_d_id, h_c_id);
CREATE INDEX history_district ON history (h_w_id, h_d_id);

CREATE TABLE orders (o_id int, o_d_id smallint, o_w_id smallint, o_c_id int, o_entry_d timestamp, o_carrier_id smallint,
  o_ol_cnt smallint, o_all_local smallint);
-- Every customer of a district has one order: 1223 and 3000 have no common divisor.
INSERT INTO orders
SELECT o, d, w, o * 1223 % 3000 + 1, now(), CASE WHEN o < 2101 THEN tpcc_int(1, 10) END, tpcc_int(5, 15), 1
FROM generate_series(1, :warehouses) w, generate_series(1, 10) d, generate_series(1, 3000) o;
ALTER TABLE orders ADD PRIMARY KEY (o_w_id, o_d_id, o_id);
CREATE INDEX orders_customer ON orders (o_w_id, o_d_id, o_c_id, o_id);

CREATE TABLE new_orders (no_o_id int, no_d_id smallint, no_w_id smallint);
INSERT INTO new_orders SELECT o_id, o_d_id, o_w_id FROM orders WHERE o_carrier_id IS NULL;
ALTER TABLE new_orders ADD PRIMARY KEY (no_w_id, no_d_id, no_o_id);

CREATE TABLE order_line (ol_o_id int, ol_d_id smallint, ol_w_id smallint, ol_number smallint, ol_i_id int, ol_supply_w_id smallint,
  ol_delivery_d timestamp, ol_quantity smallint, ol_amount decimal(6,2), ol_dist_info char(24));
INSERT INTO order_line
SELECT o_id, o_d_id, o_w_id, n, tpcc_int(1, 100000), o_w_id, CASE WHEN o_carrier_id IS NOT NULL THEN o_entry_d END, 5,
       CASE WHEN o_carrier_id IS NULL THEN tpcc_int(1, 999999) / 100.0 ELSE 0 END, tpcc_text(24, 24)
FROM orders, generate_series(1, o_ol_cnt) n;
ALTER TABLE order_line ADD PRIMARY KEY (ol_w_id, ol_d_id, ol_o_id, ol_number);
CREATE INDEX order_line_item ON order_line (ol_supply_w_id, ol_i_id);

VACUUM ANALYZE;
