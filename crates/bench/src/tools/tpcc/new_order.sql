-- TPC-C's new order, all of one warehouse. pgbench variables: warehouses.
\set w random(1, :warehouses)
\set d random(1, 10)
\set c 1 + (random(0, 1023) | random(1, 3000)) % 3000
\set lines random(5, 15)
BEGIN;
SELECT w_tax, c_discount, c_last, c_credit FROM warehouse, customer WHERE w_id = :w AND c_w_id = :w AND c_d_id = :d AND c_id = :c;
UPDATE district SET d_next_o_id = d_next_o_id + 1 WHERE d_w_id = :w AND d_id = :d RETURNING d_next_o_id - 1 AS o \gset
INSERT INTO orders VALUES (:o, :d, :w, :c, now(), NULL, :lines, 1);
INSERT INTO new_orders VALUES (:o, :d, :w);
-- An item once in each order, and always in the order of their numbers, as those do who want no deadlocks.
WITH picked AS MATERIALIZED (
  SELECT row_number() OVER (ORDER BY i) AS n, i, tpcc_int(1, 10) AS q
  FROM (SELECT DISTINCT tpcc_uneven(8191, 1, 100000) AS i FROM generate_series(1, :lines) ORDER BY 1 LIMIT 15) d
), taken AS (
  UPDATE stock SET s_quantity = CASE WHEN s_quantity >= q + 10 THEN s_quantity - q ELSE s_quantity - q + 91 END,
    s_ytd = s_ytd + q, s_order_cnt = s_order_cnt + 1
  FROM picked WHERE s_w_id = :w AND s_i_id = i RETURNING n, i, q, s_dist_01
)
INSERT INTO order_line SELECT :o, :d, :w, n, i, :w, NULL, q, q * i_price, s_dist_01 FROM taken JOIN item ON i_id = i;
END;
